"""What the policy follows in LEDGER: the state of the run, trained counts, and its own last words.

A fold over events in log order: the same events give the same view.
"""

from dataclasses import dataclass, field

from broker.bus import Bus, Cursor, Stored
from broker.errors import TooLong
from broker.messages import (
    Event,
    LogPurged,
    MixtureUpdated,
    ReaderAdvanced,
    RunDraining,
    RunEnded,
    RunStarted,
    StepPlanned,
)
from broker.telemetry import Health
from broker.topology import Log, kind_subjects

READER = "policy"
CATCH_UP_S = 60.0
"""Reading a log to an end that is known to exist takes at most this long without a message."""


@dataclass
class LedgerView:
    """The fold."""

    draining: RunDraining | None = None
    """Since the run was last started."""
    ended: RunEnded | None = None
    """Since the run was last started."""
    ended_before: RunEnded | None = None
    """The end that the newest start resumed from."""
    mixture: MixtureUpdated | None = None
    mixture_seq: int = 0
    """Sequence in LEDGER, 0 without one: what the next update must follow."""
    advanced: dict[str, tuple[ReaderAdvanced, int]] = field(
        default_factory=dict[str, tuple[ReaderAdvanced, int]]
    )
    """Per log, what the policy last said of itself, and the sequence of that."""
    floor: int = 0
    step: int = 0
    """Newest step that `trained` counts."""
    trained: dict[str, int] = field(default_factory=dict[str, int])
    """Groups in planned steps, per domain."""

    def apply(self, sequence: int, event: Event) -> None:
        match event:
            case RunStarted():
                self.ended_before = self.ended or self.ended_before
                self.draining = self.ended = None
            case RunDraining():
                self.draining = event
            case RunEnded():
                self.ended = event
            case LogPurged():
                self.floor = max(self.floor, event.floor)
            case ReaderAdvanced():
                self.advanced[event.log] = event, sequence
            case MixtureUpdated():
                self.mixture, self.mixture_seq = event, sequence
                if event.step >= self.step:
                    # Older plans may be purged; the update has them counted.
                    self.step = event.step
                    self.trained = {share.domain: share.trained for share in event.domains}
            case StepPlanned():
                self._plan(event)
            case _:
                pass

    def _plan(self, event: StepPlanned) -> None:
        if event.step > self.step:
            self.step = event.step
            for group in event.groups:
                self.trained[group.domain] = self.trained.get(group.domain, 0) + 1


def followed_subjects(run: str) -> list[str]:
    kinds = (RunStarted, RunDraining, RunEnded, LogPurged, MixtureUpdated, StepPlanned)
    own = f"sluice.{run}.{ReaderAdvanced.KIND}.{READER}.>"
    return [*(kind_subjects(run, kind.KIND) for kind in kinds), own]


async def read_to(cursor: Cursor, end: int, what: str, health: Health) -> list[Stored]:
    """Read a cursor up to a sequence that is known to hold a message it sees."""
    found: list[Stored] = []
    silent_s = 0.0
    with health.waiting_for(what, CATCH_UP_S):
        while cursor.position < end:
            health.beat()
            batch = await cursor.read(256, 1.0)
            found += batch
            silent_s = 0.0 if batch else silent_s + 1.0
            if silent_s >= CATCH_UP_S:
                raise TooLong(
                    f"{what}: nothing came after {cursor.position} for {CATCH_UP_S:.0f} s; "
                    f"expected messages up to {end}"
                )
    return found


class LedgerFollower:
    """Keeps a view up to date."""

    def __init__(self, bus: Bus, health: Health) -> None:
        self.view = LedgerView()
        self._bus, self._health = bus, health
        self._cursor: Cursor | None = None
        self._last = -1

    @property
    def position(self) -> int:
        """Sequence in LEDGER up to which the view knows everything."""
        return self._cursor.position if self._cursor is not None else 0

    async def refresh(self) -> None:
        """Read to the end of what the policy follows, as the leader has it now."""
        state = await self._bus.state(Log.LEDGER)
        if state.last == self._last:
            return
        subjects = followed_subjects(self._bus.run)
        if self._cursor is None:
            self._cursor = await self._bus.cursor(Log.LEDGER, 0, subjects)
        newest = [await self._bus.last(Log.LEDGER, subject) for subject in subjects]
        end = max((stored.sequence for stored in newest if stored is not None), default=0)
        for stored in await read_to(self._cursor, end, "the end of LEDGER", self._health):
            self.view.apply(stored.sequence, stored.event())
        self._last = state.last

    async def close(self) -> None:
        if self._cursor is not None:
            await self._cursor.close()
