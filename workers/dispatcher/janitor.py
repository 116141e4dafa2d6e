"""Keeps the logs within their limits: purges what every reader has passed and nothing can need again.

Nothing goes before its request has ended and every reader has told that it is done with it; what a
redo from the newest checkpoint reads stays. `LogPurged` is on record before anything is deleted.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from broker.bus import Bus, Cursor, LogState
from broker.messages import LogPurged
from broker.telemetry import now_us
from broker.topology import H_REQUEST_SEQ, Log, kind_subjects
from workers.dispatcher.outbox import Outbox
from workers.dispatcher.state import State

READERS: Mapping[Log, tuple[str, ...]] = {
    Log.REQUESTS: ("recorder",),
    Log.GENERATED: ("recorder",),
    Log.VERIFIED: ("policy", "recorder"),
    Log.ANNOTATED: ("learner", "recorder"),
    Log.LEDGER: ("policy", "recorder"),
}
"""In flow order. A reader that has not told anything yet counts as 0."""
KEEP_FRACTION = 0.5
"""A log is left alone up to this share of its limit, so that replay reaches far back."""
READ_WAIT_S = 0.5
INTERVAL_S = 5.0

log = structlog.get_logger()


@dataclass(frozen=True)
class Bounds:
    """How far each thing may be purged."""

    floor: int
    """request_seq up to which groups may go from every log."""
    sequences: Mapping[Log, int]
    """Per log, the last sequence that its readers and the newest checkpoint let go."""


def bounds(state: State) -> Bounds:
    """What may go now. Pure.

    Without a checkpoint nothing may: the learner would have to redo everything.
    """
    if state.checkpoint is None:
        return Bounds(0, dict.fromkeys(READERS, 0))
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

    async def work(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            await self.clean()

    async def clean(self) -> int:
        """Purge what may go from every log that is over its share; how many messages went."""
        full = [of for of in READERS if self._is_full(await self._bus.state(of))]
        if not full:
            return 0
        may_go = bounds(self._state)
        if may_go.floor > self._state.floor:
            await self._announce(may_go.floor)
        purged = 0
        for of in full:
            up_to = await self._last_to_go(of, may_go)
            if up_to > 0:
                purged += await self._bus.purge(of, up_to, keep_last_per_subject=of is Log.LEDGER)
        if purged:
            log.info("purged", messages=purged, floor=may_go.floor)
        return purged

    async def _announce(self, floor: int) -> None:
        last = await self._bus.last(Log.LEDGER, kind_subjects(self._bus.run, LogPurged.KIND))
        event = LogPurged(writer_id=self._outbox.writer_id, at_us=now_us(), floor=floor)
        await self._outbox.ledger(event, expect_subject=last.sequence if last else 0)

    async def _last_to_go(self, of: Log, may_go: Bounds) -> int:
        """The last sequence of a log before which every group is at or below the floor."""
        if of is Log.LEDGER:
            return may_go.sequences[of]
        end = self._ends.get(of)
        if end is None:
            end = self._ends[of] = _End(await self._bus.cursor(of, 0, headers_only=True))
        return await end.advance(floor=may_go.floor, up_to=may_go.sequences[of])

    def _is_full(self, found: LogState) -> bool:
        return found.bytes > self._keep_fraction * found.limit_bytes

    async def close(self) -> None:
        for end in self._ends.values():
            await end.cursor.close()


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
            self.ahead = (found[0].sequence, int(found[0].headers[H_REQUEST_SEQ]))
