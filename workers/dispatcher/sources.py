"""Where samples come from: one source a domain, endless, addressed by draw number.

`Source.sample(n)` is a pure function of configuration, files and n: a restart needs the counters only.
Every pass goes through all items once, in an order of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from broker.errors import BadConfiguration
from broker.messages import Sample
from workers.dispatcher import generators, jsonl, stored
from workers.dispatcher.items import Item, ItemSet
from workers.dispatcher.levels import LevelMix
from workers.dispatcher.permutation import permute
from workers.dispatcher.rendering import Rendered, Renderer
from workers.dispatcher.settings import SourceSettings


@dataclass(frozen=True)
class Source:
    """One domain's samples."""

    settings: SourceSettings
    seed: int
    """The run's; orders the passes."""
    train: ItemSet
    held_out: ItemSet
    passes: int | None = None
    """Exhausted after this many; None: never."""
    mix: LevelMix | None = None
    """None: all items alike."""

    @property
    def domain(self) -> str:
        return self.settings.domain

    def item(self, position: int) -> tuple[Item, int]:
        """(item, pass) of the draw with that number, from 0."""
        if self.mix is not None:
            place, pass_no = self.mix.place(position, f"{self.seed}:{self.domain}")
            return self.train.items[place], pass_no
        size = len(self.train.items)
        pass_no, place = divmod(position, size)
        key = f"{self.seed}:{self.domain}:{pass_no}"
        return self.train.items[permute(place, size=size, key=key)], pass_no

    def sample(self, position: int) -> tuple[Sample, int]:
        """(sample, pass) of the draw with that number, from 0."""
        item, pass_no = self.item(position)
        return self._sample(self.train, item), pass_no

    def exhausted(self, position: int) -> bool:
        return self.passes is not None and position >= self.passes * len(self.train.items)

    def evaluation(self) -> list[Sample]:
        """The held-out samples, in their order."""
        return [self._sample(self.held_out, item) for item in self.held_out.items]

    def _sample(self, items: ItemSet, item: Item) -> Sample:
        return Sample(
            key=items.key(item),
            dataset=items.dataset,
            dataset_version=items.version,
            item_index=item.index,
            domain=self.domain,
            difficulty=item.difficulty,
            prompt=item.prompt,
            target=item.target,
            labeled=item.target is not None,
            verifier=self.settings.verifier if item.verifier is None else item.verifier,
            options=item.options,
        )


NOTHING = ItemSet("none", "0", ())


def load(settings: Sequence[SourceSettings], renderer: Renderer, *, seed: int) -> list[Source]:
    """All sources, checked: rows, prompt lengths, held-out items apart from training items.

    Raises BadConfiguration naming source, item and reason.
    """
    return [_load_one(source, renderer, seed) for source in settings]


def _load_one(settings: SourceSettings, renderer: Renderer, seed: int) -> Source:
    if settings.path is None:
        train, held_out = generators.load(settings)
    else:
        train = _rows(settings.path, settings, settings.max_rows)
        held_out = _labelled(settings, _held_out_rows(settings))
    train, held_out = (_fitting(settings, items, renderer) for items in (train, held_out))
    train = _apart(settings, train, held_out)
    mix = LevelMix.of(train.items, settings.levels, settings.domain) if settings.levels else None
    return Source(settings, seed, train, held_out, _passes(settings), mix)


def _rows(path: Path, settings: SourceSettings, max_rows: int | None) -> ItemSet:
    kind = stored if stored.is_stored(path) else jsonl
    return kind.load(path, settings, max_rows=max_rows)


def _held_out_rows(settings: SourceSettings) -> ItemSet:
    if settings.eval_items == 0:
        return NOTHING
    if settings.eval_path is None:
        raise BadConfiguration(
            f"source.{settings.domain}: eval_items = {settings.eval_items} needs eval_path"
        )
    return _rows(settings.eval_path, settings, settings.eval_items)


def _labelled(settings: SourceSettings, held_out: ItemSet) -> ItemSet:
    """The held-out items with a target; others, of which no score comes, are refused."""
    bare = {place for place, item in enumerate(held_out.items) if item.target is None}
    if not bare:
        return held_out
    reason = (
        f"source.{settings.domain}: {len(bare)} of {len(held_out.items)} held-out rows are unlabelled; "
        f"the first is {held_out.key(held_out.items[min(bare)])}"
    )
    return _without(settings, held_out, bare, reason)


def _passes(settings: SourceSettings) -> int | None:
    value = settings.options.get("passes")
    if value is None:
        return None
    if settings.levels:
        raise BadConfiguration(
            f"source.{settings.domain}.options.passes = {value!r}: expected none beside levels, of "
            "which each goes through its items at a pace of its own"
        )
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadConfiguration(
            f"source.{settings.domain}.options.passes = {value!r}: expected an integer >= 1"
        )
    return value


def _fitting(settings: SourceSettings, items: ItemSet, renderer: Renderer) -> ItemSet:
    """The items whose prompts are not too long for the model or `prompt.max_tokens`; others are refused."""
    items, rendered = _rendered(settings, items, renderer)
    long = {place: len(r.ids) for place, r in enumerate(rendered) if len(r.ids) > renderer.limit}
    if not long:
        return items
    place, tokens = next(iter(long.items()))
    reason = (
        f"source.{settings.domain}: {len(long)} of {len(items.items)} prompts are longer than "
        f"{renderer.limit_text}; the first is {items.key(items.items[place])} with {tokens}"
    )
    return _without(settings, items, set(long), reason)


def _rendered(
    settings: SourceSettings, items: ItemSet, renderer: Renderer
) -> tuple[ItemSet, list[Rendered]]:
    """The items whose prompts the tokenizer and the template can write; others are refused."""
    try:
        return items, renderer.render_all([item.prompt for item in items.items])
    except ValueError:
        bad = {
            place: why
            for place, item in enumerate(items.items)
            if (why := _refusal(item, renderer))
        }
        first = items.items[min(bad)]
        reason = (
            f"source.{settings.domain}: {len(bad)} of {len(items.items)} prompts cannot be rendered; "
            f"the first is row {first.index + 1}, {items.key(first)}: {bad[min(bad)]}"
        )
        return _rendered(settings, _without(settings, items, set(bad), reason), renderer)


def _refusal(item: Item, renderer: Renderer) -> str:
    try:
        renderer.render(item.prompt)
    except ValueError as error:
        return str(error)
    return ""


def _apart(settings: SourceSettings, train: ItemSet, held_out: ItemSet) -> ItemSet:
    """The training items whose prompts are not held out; the others are refused."""
    known = {item.prompt for item in held_out.items}
    shared = {place for place, item in enumerate(train.items) if item.prompt in known}
    if not shared:
        return train
    reason = (
        f"source.{settings.domain}: {len(shared)} training prompts are held out for evaluation too; "
        f"the first is {train.key(train.items[min(shared)])}"
    )
    return _without(settings, train, shared, reason)


def _without(settings: SourceSettings, items: ItemSet, out: set[int], reason: str) -> ItemSet:
    if not settings.skip_bad:
        raise BadConfiguration(f"{reason} (skip_bad = true loads the other rows)")
    kept = tuple(item for place, item in enumerate(items.items) if place not in out)
    if not kept:
        raise BadConfiguration(f"{reason}; none is left")
    return replace(items, items=kept, skipped=(*items.skipped, reason))
