"""What a benchmark says: our figure beside a peer's or a stated limit, measured in the same run."""

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Result:
    """One figure; medians over `rounds`."""

    name: str
    """Of the benchmark."""
    metric: str
    unit: str
    ours: float
    peer: float | None = None
    """The same of somebody else, or of the least that the task takes."""
    limit: float | None = None
    """What `ours` must keep to, in its unit."""
    rounds: int = 1
    more_is_better: bool = True

    @property
    def ratio(self) -> float | None:
        """Ours to the peer's."""
        return self.ours / self.peer if self.peer else None

    @property
    def kept(self) -> bool:
        """Whether the limit is kept; true without one."""
        if self.limit is None:
            return True
        return self.ours >= self.limit if self.more_is_better else self.ours <= self.limit

    def tree(self) -> dict[str, Any]:
        """As `--json` prints it."""
        known = asdict(self) | {"ratio": self.ratio}
        return {
            key: known[key]
            for key in ("name", "metric", "unit", "ours", "peer", "ratio", "limit", "rounds")
        }


def side_by_side(
    ours: Callable[[], float], peer: Callable[[], float], *, rounds: int
) -> tuple[float, float]:
    """Medians of both, measured in turn, so that a change of the machine's pace meets both."""
    found: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        # Who goes first has the colder caches: they take turns.
        order = [(0, ours), (1, peer)]
        for which, measure in order if number % 2 == 0 else reversed(order):
            found[which].append(measure())
    return statistics.median(found[0]), statistics.median(found[1])
