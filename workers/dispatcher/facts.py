"""What a run's logs add up to, apart from its groups: where it stands, what it hears, its cohort."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Life:
    """Where the run stands. Sequences in LEDGER, 0 when it never happened."""

    started: int = 0
    draining: int = 0
    ended: int = 0
    stop: int = 0
    drain_reason: str = ""

    @property
    def is_draining(self) -> bool:
        return self.draining > self.started

    @property
    def is_ended(self) -> bool:
        return self.ended > self.started

    @property
    def stop_requested(self) -> bool:
        return self.stop > self.started

    @property
    def hurried(self) -> bool:
        """Asked to stop once more while it was ending."""
        return self.is_draining and self.stop > self.draining


@dataclass
class Cohort:
    """Deterministic mode: the newest set of requests that are decoded and decided together."""

    number: int = 0
    first: int = 0
    """request_seq of its first group."""
    touched: bool = False
    """A decision about one of its groups has been seen."""
    decided: bool = True
    """All decisions about it have been seen."""
    size: int = 0
    lacking: int = 0
    """Groups of it that are still to be asked for: a full server kept only the first requests."""

    def lacks(self, groups: int) -> None:
        """What an earlier dispatcher could not store of it."""
        self.lacking = groups
        self.first += groups


@dataclass
class Silence:
    """Signs that the run learns nothing."""

    dead_groups: int = 0
    """Train groups that ended undecided or filtered since one was last admitted."""
    dead_reasons: Counter[str] = field(default_factory=Counter)
    silent_steps: int = 0
    """Steps in a row without a group of unequal advantages."""
