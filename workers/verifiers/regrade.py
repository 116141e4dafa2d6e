"""Recorded answers through a verifier again: which verdicts change."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from broker.errors import BadConfiguration
from broker.messages import Json, Verdict
from workers.verifiers.calls import Graded
from workers.verifiers.pool import Pool
from workers.verifiers.registry import Specification, normalised
from workers.verifiers.worker import verdict

EXAMPLES = 3
"""Kept of each kind of flip."""
KINDS = 30
"""Told apart; scores that are shares make one of nearly every flip."""
OTHER = ("other", "other")


@dataclass(frozen=True)
class Known:
    """A recorded answer and its verdict."""

    text: str
    status: str
    score: float | None
    extracted: str | None


@dataclass(frozen=True)
class Flip:
    """A verdict that changed."""

    group_id: str
    index: int
    target: str | None
    text: str
    before: str
    after: str
    extracted_before: str | None
    extracted_after: str | None
    detail: str


@dataclass
class Flips:
    """Kinds of change, each with a few examples."""

    judged: int = 0
    kinds: Counter[tuple[str, str]] = field(default_factory=Counter)
    examples: dict[tuple[str, str], list[Flip]] = field(default_factory=dict)

    def add(self, flip: Flip) -> None:
        kind = (flip.before, flip.after)
        if kind not in self.kinds and len(self.kinds) >= KINDS:
            kind = OTHER
        self.kinds[kind] += 1
        kept = self.examples.setdefault(kind, [])
        if len(kept) < EXAMPLES:
            kept.append(flip)


def specification(asked: Specification, own: Json) -> Json:
    """What to judge a sample with: its own options, where the verifier is its own by name."""
    table = normalised(asked)
    return dict(own) if len(table) == 1 and own.get("name") == table["name"] else table


async def again(
    pool: Pool,
    spec: Json,
    group_id: str,
    target: str | None,
    known: Mapping[int, Known],
    item: Json,
    flips: Flips,
) -> list[Verdict]:
    """New verdicts of one group, by index; what changed goes to `flips`.

    Raises BadConfiguration when the verifier cannot be built.
    """
    graded: Graded = await pool.grade(
        spec, target, {index: answer.text for index, answer in known.items()}, item
    )
    if graded.broken:
        raise BadConfiguration(graded.broken)
    verdicts = [verdict(index, graded) for index in sorted(known)]
    for found in verdicts:
        old = known[found.index]
        flips.judged += 1
        before, after = outcome(old.status, old.score), outcome(found.status, found.score)
        if before != after:
            flips.add(
                Flip(
                    group_id,
                    found.index,
                    target,
                    old.text,
                    before,
                    after,
                    old.extracted,
                    found.extracted,
                    found.detail,
                )
            )
    return verdicts


def outcome(status: str, score: float | None) -> str:
    """As a table shows it: the score, or the status where there is none; `no_answer` is told apart."""
    return f"{score:.4g}" if status == "ok" and score is not None else status
