"""In which order arrivals are decided: at once, or when their cohort or their bundle is complete.

Pure and deterministic: the same arrivals in the same order give the same units. What is held back
is told by `pending` and `broken`, so that a restart can go on from there.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from broker.messages import GroupVerified


@dataclass(frozen=True, eq=False)
class Arrival:
    """A verified or failed train group, as it stands in the log."""

    sequence: int
    """In VERIFIED."""
    event: GroupVerified

    @property
    def failed(self) -> bool:
        return self.event.status == "failed"


@dataclass(frozen=True)
class Unit:
    """Arrivals that are decided together."""

    arrivals: tuple[Arrival, ...]
    whole: bool
    """False when a member of the bundle has failed: the others end with it."""


class Sequencer:
    """Holds back incomplete bundles and, in deterministic mode, incomplete cohorts."""

    def __init__(self, *, deterministic: bool, broken: Mapping[str, int] | None = None) -> None:
        self._deterministic = deterministic
        self._cohort: list[Arrival] = []
        self._bundles: dict[str, list[Arrival]] = {}
        self.broken: dict[str, int] = dict(broken or {})
        """Bundles with a failed member, and how many of their members are still to come."""

    def feed(self, arrival: Arrival) -> list[Unit]:
        units = [self._bundle(member) for member in self._complete_cohort(arrival)]
        return [unit for unit in units if unit is not None]

    def pending(self) -> list[Arrival]:
        """The arrivals held back, in log order."""
        held = [*self._cohort, *(a for bundle in self._bundles.values() for a in bundle)]
        return sorted(held, key=lambda a: a.sequence)

    def flush(self) -> list[Arrival]:
        """What is held back, in log order; nothing is afterwards."""
        held = self.pending()
        self._cohort, self._bundles, self.broken = [], {}, {}
        return held

    def _complete_cohort(self, arrival: Arrival) -> list[Arrival]:
        if not self._deterministic:
            return [arrival]
        self._cohort.append(arrival)
        sizes = [a.event.request.cohort_size for a in self._cohort if a.event.request]
        expected = max((size for size in sizes if size is not None), default=1)
        if len(self._cohort) < expected:
            return []
        complete, self._cohort = self._cohort, []
        return sorted(complete, key=lambda a: a.event.group.request_seq)

    def _bundle(self, arrival: Arrival) -> Unit | None:
        key = arrival.event.group
        if key.bundle_size == 1:
            return Unit((arrival,), whole=not arrival.failed)
        if key.bundle in self.broken:
            self.broken[key.bundle] -= 1
            if self.broken[key.bundle] == 0:
                del self.broken[key.bundle]
            return Unit((arrival,), whole=False)
        members = [*self._bundles.pop(key.bundle, []), arrival]
        if arrival.failed:
            if len(members) < key.bundle_size:
                self.broken[key.bundle] = key.bundle_size - len(members)
            return Unit(tuple(members), whole=False)
        if len(members) == key.bundle_size:
            members.sort(key=lambda a: a.event.group.request_seq)
            return Unit(tuple(members), whole=True)
        self._bundles[key.bundle] = members
        return None
