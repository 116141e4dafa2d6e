"""Keeps the logs within their limits: purges what every reader has passed and nothing can need again.

Nothing goes before its request has ended and every reader has told that it is done with it; what a
redo from the newest checkpoint reads stays. `LogPurged` is on record before anything is deleted:
from then on every stage discards what comes late for a group at or below its floor.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from broker.bus import Bus, Cursor, LogState
from broker.errors import Replaced
from broker.messages import LogPurged
from broker.packing import LOG_SHARE
from broker.telemetry import now_us
from broker.topology import H_REQUEST_SEQ, H_WRITER, Log, kind_subjects
from workers.dispatcher.orphans import Orphans
from workers.dispatcher.outbox import Outbox
from workers.dispatcher.state import State

READERS: Mapping[Log, tuple[str, ...]] = {
    Log.REQUESTS: ("recorder",),
    Log.GENERATED: ("recorder",),
    Log.VERIFIED: ("policy", "recorder"),
    Log.ANNOTATED: ("learner", "policy", "recorder"),
    Log.LEDGER: ("policy", "recorder"),
}
"""In flow order. A reader that has not told anything yet counts as 0.

What the learner still needs of LEDGER is told by its newest checkpoint: that event and all after it.
"""
KEEP_FRACTION = 0.5
"""A log is left alone up to this share of its limit, so that replay reaches far back."""
FULL_FRACTION = 1 - 1 / LOG_SHARE
"""Above this share of its limit a log may be full for whoever has a large message. Next to nothing is
asked for: the rest is for groups under way, behind the oldest of which nothing can be purged, and for the
readers of LEDGER, who tell there what lets it be."""
READ_WAIT_S = 0.5
INTERVAL_S, SHORT_INTERVAL_S = 2.0, 0.25
"""Between two looks; the second once a log is over the share that is kept."""
ANNOUNCE_LIMIT_S = 5.0

log = structlog.get_logger()


@dataclass(frozen=True)
class Bounds:
    """How far each thing may be purged."""

    floor: int
    """request_seq up to which groups may go from every log."""
    sequences: Mapping[Log, int]
    """Per log, the last sequence that its readers and the newest checkpoint let go."""


def bounds(state: State, *, floor: int | None = None) -> Bounds:
    """What may go now, with a floor that is on record, or with the one that might be put there. Pure.

    Without a checkpoint nothing may: the learner would have to redo everything.
    """
    if state.checkpoint is None:
        return Bounds(0, dict.fromkeys(READERS, 0))
    if floor is None:
        redo = state.spans.first_request_after(state.checkpoint.step)
        floor = state.settled_floor if redo is None else min(state.settled_floor, redo - 1)
    passed = {
        of: min(state.readers.get((reader, of), 0) for reader in readers)
        for of, readers in READERS.items()
    }
    passed[Log.REQUESTS] = min(passed[Log.REQUESTS], state.last_train_sequence - 1)
    passed[Log.ANNOTATED] = min(passed[Log.ANNOTATED], state.checkpoint.cursor)
    needed = [
        state.spans.first_plan_above(floor),
        state.checkpoint_sequence,
        *(state.weights_sequences.get(version) for version in state.evaluations.begun()),
    ]
    keep_from = min((sequence for sequence in needed if sequence is not None), default=0)
    passed[Log.LEDGER] = min(passed[Log.LEDGER], keep_from - 1)
    return Bounds(floor, {of: max(sequence, 0) for of, sequence in passed.items()})


class Janitor:
    """Looks at all logs now and then; reads the headers of what may go, once."""

    def __init__(
        self, bus: Bus, state: State, outbox: Outbox, *, keep_fraction: float = KEEP_FRACTION
    ) -> None:
        self._bus = bus
        self._state = state
        self._outbox = outbox
        self._keep_fraction = keep_fraction
        self._ends: dict[Log, _End] = {}
        self._announced_for: int | None = None
        """The checkpoint that the floor was last put on record for."""
        self._orphans = Orphans(bus)
        self.full: tuple[str, ...] = ()
        """What publishers may have to wait for space in."""
        self._over: list[Log] = []

    async def work(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(min(INTERVAL_S, SHORT_INTERVAL_S) if self._over else INTERVAL_S)
            await self.clean()

    async def clean(self) -> int:
        """Purge what may go from every log that is over its share; how many messages went.

        When the store as a whole is full, no floor can be put on record; then all goes that lies below
        the last one. It follows each checkpoint, whether there was need of space or not.
        """
        states = {of: await self._bus.state(of) for of in READERS}
        has_room = await self._bus.has_room()
        full = [str(of) for of in READERS if _over(states[of], FULL_FRACTION)]
        self.full = (*full, *([] if has_room else ["the store"]))
        await self._orphans.sweep_now_and_then(tight=bool(self.full))
        over = [of for of in READERS if not has_room or _over(states[of], self._keep_fraction)]
        self._over = over
        if has_room and (over or self._state.checkpoint_sequence != self._announced_for):
            await self._announce(bounds(self._state).floor)
        may_go = bounds(self._state, floor=self._state.floor)
        purged = 0
        for of in over:
            up_to = await self._last_to_go(of, may_go)
            if up_to > 0:
                purged += await self._bus.purge(of, up_to, keep_last_per_subject=of is Log.LEDGER)
        if purged:
            log.info("purged", messages=purged, floor=may_go.floor, store_full=not has_room)
        return purged

    async def _announce(self, floor: int) -> None:
        """Put the floor on record; compare-and-set, so that a dispatcher that was replaced cannot."""
        checkpoint = self._state.checkpoint_sequence
        last = await self._bus.last(Log.LEDGER, kind_subjects(self._bus.run, LogPurged.KIND))
        if last is not None and last.sequence > self._state.floor_sequence:
            if last.headers.get(H_WRITER) != self._outbox.writer_id:
                raise Replaced(f"dispatcher: another one has purged the logs ({last.headers})")
            # Our own, whose storing was not confirmed in time.
            self._state.apply_ledger(last.event(), last.sequence)
        if floor <= self._state.floor:
            return
        event = LogPurged(writer_id=self._outbox.writer_id, at_us=now_us(), floor=floor)
        try:
            async with asyncio.timeout(ANNOUNCE_LIMIT_S):
                sequence = await self._outbox.ledger(
                    event, expect_subject=self._state.floor_sequence
                )
        except TimeoutError:
            return  # no room after all: what lies below the floor on record makes some
        self._state.apply_ledger(event, sequence)
        self._announced_for = checkpoint

    async def _last_to_go(self, of: Log, may_go: Bounds) -> int:
        """The last sequence of a log before which every group is at or below the floor."""
        if of is Log.LEDGER:
            return may_go.sequences[of]
        end = self._ends.get(of)
        if end is None:
            end = self._ends[of] = _End(await self._bus.cursor(of, 0, headers_only=True))
        return await end.advance(floor=may_go.floor, up_to=may_go.sequences[of])

    async def close(self) -> None:
        for end in self._ends.values():
            await end.cursor.close()


def _over(found: LogState, share: float) -> bool:
    return found.bytes > share * found.limit_bytes


@dataclass
class _End:
    """How far one log has been looked through."""

    cursor: Cursor
    last: int = 0
    """Everything up to here may go."""
    ahead: tuple[int, int] | None = None
    """(sequence, request_seq) of the message that was read and may not go yet."""

    async def advance(self, *, floor: int, up_to: int) -> int:
        while True:
            if self.ahead is not None:
                sequence, request_seq = self.ahead
                if sequence > up_to or request_seq > floor:
                    return self.last
                self.last, self.ahead = sequence, None
            found = await self.cursor.read(1, READ_WAIT_S)
            if not found:
                return self.last
            number = found[0].headers.get(H_REQUEST_SEQ, "")
            # Without a number it is no stage's message, and goes with those around it.
            self.ahead = (found[0].sequence, int(number) if number.isdecimal() else 0)
