"""Held-out evaluation: one greedy answer per item at a pinned version, collected without gaps. Pure.

A missing or ungraded item is listed and makes the score null, never 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from broker.messages import EvaluationFinished, EvaluationItem, Sample


def item_id(version: int, benchmark: str, item: int) -> str:
    return f"v{version:06d}-{benchmark}-{item:05d}-0"


def parse_item_id(group_id: str) -> tuple[int, str, int]:
    """(version, benchmark, item). ValueError when it is no evaluation's id."""
    version, _, rest = group_id.partition("-")
    benchmark, item, _ = rest.rsplit("-", 2)
    if not version.startswith("v"):
        raise ValueError(f"{group_id}: expected vVERSION-BENCHMARK-ITEM-ATTEMPT")
    return int(version[1:]), benchmark, int(item)


@dataclass
class Progress:
    """One benchmark at one version."""

    requested: dict[int, int] = field(default_factory=dict)
    """request_seq by item."""
    scores: dict[int, float | None] = field(default_factory=dict)
    """By item; None when it failed or could not be graded."""


class Evaluations:
    """The fold of evaluation requests, results and finished evaluations."""

    def __init__(self) -> None:
        self._progress: dict[tuple[int, str], Progress] = {}
        self._finished: set[tuple[int, str]] = set()

    def requested(self, group_id: str, request_seq: int) -> None:
        version, benchmark, item = parse_item_id(group_id)
        if (version, benchmark) not in self._finished:
            progress = self._progress.setdefault((version, benchmark), Progress())
            progress.requested[item] = request_seq

    def withdraw(self, group_id: str) -> None:
        """It was never asked for after all."""
        version, benchmark, item = parse_item_id(group_id)
        self.progress(version, benchmark).requested.pop(item, None)

    def measured(self, group_id: str, score: float | None) -> None:
        """The first result counts; what is finished stays as it is."""
        version, benchmark, item = parse_item_id(group_id)
        if (version, benchmark) not in self._finished:
            progress = self._progress.setdefault((version, benchmark), Progress())
            progress.scores.setdefault(item, score)

    def finished(self, version: int, benchmark: str) -> None:
        self._finished.add((version, benchmark))
        self._progress.pop((version, benchmark), None)

    def is_finished(self, version: int, benchmark: str) -> bool:
        return (version, benchmark) in self._finished

    def progress(self, version: int, benchmark: str) -> Progress:
        return self._progress.get((version, benchmark), Progress())

    def unsettled(self) -> int | None:
        """The oldest request_seq of an evaluation that is not finished: its results are needed."""
        waiting = [min(p.requested.values()) for p in self._progress.values() if p.requested]
        return min(waiting, default=None)

    def begun(self) -> list[int]:
        """Versions with requests under way."""
        return sorted({version for (version, _), p in self._progress.items() if p.requested})


def conclude(
    version: int,
    step: int,
    benchmark: str,
    *,
    samples: Sequence[Sample],
    scores: Mapping[int, float | None],
    writer_id: str,
    at_us: int,
) -> EvaluationFinished:
    """The result from what has been measured so far."""
    items = tuple(
        EvaluationItem(
            sample_key=sample.key,
            group_id=item_id(version, benchmark, index),
            domain=sample.domain,
            score=scores.get(index),
        )
        for index, sample in enumerate(samples)
    )
    known = [item.score for item in items if item.score is not None]
    return EvaluationFinished(
        writer_id=writer_id,
        at_us=at_us,
        version=version,
        step=step,
        benchmark=benchmark,
        items=len(items),
        score=sum(known) / len(known) if known and len(known) == len(items) else None,
        missing=tuple(item.sample_key for item in items if item.score is None),
        scores=items,
    )
