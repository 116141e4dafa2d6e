"""Which training groups are under way, and which must be asked for again. Pure.

Knows only what requests and ends of groups say, in whatever order the logs are read: an end of a
group that is not open changes nothing, and a retry that was already requested is not due again.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

FAILED, STALE, NOT_FRESH, RUN_ENDED = "failed", "stale", "not_fresh", "run_ended"
RETRIED = frozenset({FAILED, STALE, NOT_FRESH, RUN_ENDED})
"""Ends after which the sample is asked for again; a filtered group is not."""


class TrainId(NamedTuple):
    """The parts of a training group's id."""

    draw: int
    member: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.draw:08d}-{self.member}-{self.attempt}"

    @classmethod
    def parse(cls, group_id: str) -> "TrainId":
        """ValueError when it is not `draw-member-attempt`."""
        draw, member, attempt = (int(part) for part in group_id.split("-"))
        return cls(draw, member, attempt)


@dataclass(frozen=True)
class Requested:
    """One request for a training group, as it lies in REQUESTS."""

    group_id: str
    request_seq: int
    sequence: int
    """Its message in REQUESTS."""


@dataclass
class Bundle:
    """One attempt at a draw: its groups live and end together."""

    draw: int
    attempt: int
    groups: dict[str, Requested] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)
    windowed: set[str] = field(default_factory=set)
    """Open groups that lie in a window: decided, not yet trained."""
    ends: list[str] = field(default_factory=list)

    @property
    def request_seq(self) -> int:
        return min(requested.request_seq for requested in self.groups.values())

    @property
    def last(self) -> int:
        return max(requested.request_seq for requested in self.groups.values())


class Groups:
    """The fold of requests and ends."""

    def __init__(self, *, max_attempts: int) -> None:
        self._max_attempts = max_attempts
        self._open: dict[tuple[int, int], Bundle] = {}
        self._retries: dict[int, Bundle] = {}
        self._given_up: dict[int, Bundle] = {}
        # Kept for every draw that was ever retried: the logs may tell of an older attempt's end
        # after a newer one's. Retries are rare.
        self._latest_attempt: dict[int, int] = {}

    # --- what happened ------------------------------------------------------------------------

    def requested(self, requested: Requested) -> None:
        draw, _, attempt = TrainId.parse(requested.group_id)
        bundle = self._open.setdefault((draw, attempt), Bundle(draw, attempt))
        bundle.groups[requested.group_id] = requested
        bundle.open.add(requested.group_id)
        if attempt:
            self._latest_attempt[draw] = max(attempt, self._latest_attempt.get(draw, 0))
        due = self._retries.get(draw)
        if due is not None and due.attempt < attempt:
            del self._retries[draw]

    def windowed(self, group_id: str) -> None:
        """The group was admitted and lies in a published window."""
        bundle = self._bundle_of(group_id)
        if bundle is not None and group_id in bundle.open:
            bundle.windowed.add(group_id)

    def ended(self, group_id: str, end: str) -> bool:
        """The group was trained, or dropped or failed for that reason; False when it was not open."""
        bundle = self._bundle_of(group_id)
        if bundle is None or group_id not in bundle.open:
            return False
        bundle.open.discard(group_id)
        bundle.windowed.discard(group_id)
        bundle.ends.append(end)
        if not bundle.open:
            del self._open[bundle.draw, bundle.attempt]
            self._settle(bundle)
        return True

    def withdraw(self, group_id: str) -> None:
        """It was never asked for after all."""
        draw, _, attempt = TrainId.parse(group_id)
        self._open.pop((draw, attempt), None)

    def end_all(self, up_to: int) -> None:
        """A run ended: open groups requested up to that sequence in REQUESTS are `run_ended`."""
        for group in list(self.open_groups()):
            if group.sequence <= up_to:
                self.ended(group.group_id, RUN_ENDED)

    def give_up(self, bundle: Bundle, why: str) -> None:
        """A bundle that is due again cannot be asked for again."""
        del self._retries[bundle.draw]
        bundle.ends.append(why)
        self._given_up[bundle.draw] = bundle

    def settle(self, floor: int) -> None:
        """Requests up to this request_seq have ended and been retried or reported, it is certain."""
        for draw, attempt in [at for at, bundle in self._open.items() if bundle.last <= floor]:
            del self._open[draw, attempt]
        self._retries = {d: b for d, b in self._retries.items() if b.last > floor}
        self._given_up = {d: b for d, b in self._given_up.items() if b.last > floor}

    def reported(self, group_id: str) -> None:
        """It is on record that this group's sample is given up."""
        draw, _, attempt = TrainId.parse(group_id)
        bundle = self._given_up.get(draw)
        if bundle is not None and bundle.attempt == attempt:
            del self._given_up[draw]

    def _settle(self, bundle: Bundle) -> None:
        again = RETRIED.intersection(bundle.ends)
        if not again or self._latest_attempt.get(bundle.draw, 0) > bundle.attempt:
            return
        # The end of a run says nothing against a sample, so it does not use up its attempts.
        if RUN_ENDED in again or bundle.attempt + 1 < self._max_attempts:
            self._retries[bundle.draw] = bundle
        else:
            self._given_up[bundle.draw] = bundle

    def _bundle_of(self, group_id: str) -> Bundle | None:
        try:
            draw, _, attempt = TrainId.parse(group_id)
        except ValueError:
            return None  # nothing of ours
        return self._open.get((draw, attempt))

    # --- what follows from it -----------------------------------------------------------------

    @property
    def outstanding(self) -> int:
        """Bundles requested and not ended."""
        return len(self._open)

    @property
    def in_windows(self) -> int:
        """Open groups that lie in a published window."""
        return sum(len(bundle.windowed) for bundle in self._open.values())

    @property
    def undecided(self) -> int:
        """Open groups that lie in no published window."""
        return sum(len(b.open) - len(b.windowed) for b in self._open.values())

    def open_groups(self) -> Iterator[Requested]:
        """In the order of their requests."""
        found = [b.groups[group_id] for b in self._open.values() for group_id in b.open]
        return iter(sorted(found, key=lambda group: group.request_seq))

    def find(self, group_id: str) -> Requested | None:
        """The request of an open group."""
        bundle = self._bundle_of(group_id)
        if bundle is None or group_id not in bundle.open:
            return None
        return bundle.groups[group_id]

    def retries(self) -> list[Bundle]:
        """Bundles to request again, oldest request first."""
        return sorted(self._retries.values(), key=lambda bundle: bundle.request_seq)

    def given_up(self) -> list[Bundle]:
        """Bundles at their last attempt whose end nobody was told of yet."""
        return sorted(self._given_up.values(), key=lambda bundle: bundle.request_seq)

    def unsettled(self) -> int | None:
        """The oldest request_seq that is open, to be retried, or to be reported."""
        bundles = [*self._open.values(), *self._retries.values(), *self._given_up.values()]
        return min((bundle.request_seq for bundle in bundles), default=None)
