"""Worked solutions as token ids, for the supervised steps before the first rollout."""

from collections.abc import Iterator, Sequence

from broker.errors import BadConfiguration
from workers.dispatcher.mixture import after_draw, next_domain
from workers.dispatcher.rendering import Renderer
from workers.dispatcher.sources import Source


def solutions(
    sources: Sequence[Source], renderer: Renderer, *, max_tokens: int | None = None
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Endless (prompt ids, answer ids), domains by their warm-up shares, training items only.

    Answers end with the end token; those of more than `max_tokens` tokens are passed over.
    Raises BadConfiguration when a whole pass through a source has no solution that fits, and for one
    that the tokenizer cannot write.
    """
    by_domain = {source.domain: source for source in sources}
    weights = {source.domain: _weight(source) for source in sources}
    if not any(weights.values()):
        raise BadConfiguration("source.warmup_share: 0 for every source; expected one above 0")
    shares = {domain: weight / sum(weights.values()) for domain, weight in weights.items()}
    owed = dict.fromkeys(by_domain, 0.0)
    positions = dict.fromkeys(by_domain, 0)
    while True:
        domain = next_domain(shares, owed)
        owed = after_draw(shares, owed, domain)
        prompt, answer, positions[domain] = _next(
            by_domain[domain], positions[domain], renderer, max_tokens
        )
        yield prompt, answer


def _weight(source: Source) -> float:
    stated = source.settings.warmup_share
    return source.settings.share if stated is None else stated


def _next(
    source: Source, position: int, renderer: Renderer, max_tokens: int | None
) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    # Twice its length holds a whole pass, wherever it begins; each pass has an order of its own.
    for place in range(position, position + 2 * len(source.train.items)):
        item, _ = source.item(place)
        if item.solution is None:
            continue
        try:
            answer = renderer.answer(item.solution)
        except ValueError as error:
            if source.settings.skip_bad:
                continue
            raise BadConfiguration(
                f"source.{source.domain}: solution of row {item.index + 1}, {source.train.key(item)}: "
                f"{error} (skip_bad = true passes over it)"
            ) from error
        if max_tokens is None or len(answer) <= max_tokens:
            return renderer.render(item.prompt).ids, answer, place + 1
    raise BadConfiguration(
        f"source.{source.domain}: {source.train.dataset} has no solution"
        f"{'' if max_tokens is None else f' of at most {max_tokens} tokens'} for the warm-up"
    )
