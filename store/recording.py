"""The record of one run: how far each log is in it, and how a batch of messages takes it further.

Rows and positions are committed together. What was purged before it could be read is on record too.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import structlog

from broker.bus import Bus, Stored
from broker.messages import LogPurged
from broker.topology import Log, kind_subjects
from store import closing, writer
from store.gaps import Gap
from store.intake import LOGS, Batch
from store.projection import Projection, in_thread
from store.row import Row
from store.writer import BadRow, Encoded, Position

log = structlog.get_logger()

Bury = Callable[[Stored, str], Awaitable[None]]
"""What becomes of a message that no row can be made of, and why."""


class Recording:
    """One run's rows in Postgres, as far as they have been written."""

    def __init__(self, bus: Bus, projection: Projection, bury: Bury) -> None:
        self._bus = bus
        self._projection = projection
        self._bury = bury
        self.positions: dict[str, Position] = {}
        self.endings: list[closing.Ending] = []
        self.gaps: list[Gap] = []
        """Found since `load`."""

    async def load(self) -> None:
        run_id = self._bus.run
        self.positions = await self._projection.do(lambda c: writer.positions(c, run_id))
        self.endings = await self._projection.do(lambda c: closing.endings(c, run_id))
        await self._skip_purged()

    async def _skip_purged(self) -> None:
        """Past what a log no longer holds, if that was never read; a log may be empty by now."""
        for of in LOGS:
            first, at = (await self._bus.state(of)).first, self.position(of).sequence
            if first > at + 1:
                await self._write(
                    writer.encoded(()), {of: first - 1}, {}, [Gap(of, at + 1, first - 1)]
                )

    def position(self, of: Log) -> Position:
        return self.positions.get(of, Position())

    def sequences(self) -> dict[Log, int]:
        """Last sequence of each log that is in the record."""
        return {of: self.position(of).sequence for of in LOGS}

    async def store(self, batch: Batch) -> None:
        await self._bury_all(batch.undecodable)
        dead = Counter(stored.log for stored, _ in batch.undecodable)
        moved = {of: batch.sequences[of] for of in batch.moved}
        try:
            rows = batch.encoded or await in_thread(partial(writer.encoded, batch.rows()))
            await self._write(rows, moved, dead, batch.gaps)
        except BadRow as error:
            log.warning("a row was refused", reason=str(error))
            left, refused = await self._without_refused(batch)
            await self._bury_all(refused)
            dead.update(stored.log for stored, _ in refused)
            await self._write(writer.encoded(left), moved, dead, batch.gaps)
        self.endings += batch.endings

    async def _write(
        self,
        rows: Encoded,
        sequences: Mapping[Log, int],
        dead: Mapping[Log, int],
        gaps: Sequence[Gap],
    ) -> None:
        moved: dict[str, Position] = {
            of: Position(sequence, self.position(of).dead_lettered + dead.get(of, 0))
            for of, sequence in sequences.items()
        }
        floor = await self._floor() if gaps else 0
        now, run_id = datetime.now(UTC), self._bus.run
        await self._projection.do(
            lambda c: writer.write(c, run_id, rows, moved, now=now, gaps=gaps, floor=floor)
        )
        self.positions |= moved
        self.gaps += gaps
        for gap in gaps:
            log.error("purged before it was recorded", log=gap.log, sequences=str(gap))

    async def _floor(self) -> int:
        """Every request up to it has ended; groups above it were never purged."""
        last = await self._bus.last(Log.LEDGER, kind_subjects(self._bus.run, LogPurged.KIND))
        event = None if last is None else last.event()
        return event.floor if isinstance(event, LogPurged) else 0

    async def _without_refused(self, batch: Batch) -> tuple[list[Row], list[tuple[Stored, str]]]:
        """The rows that can be written, and the messages of the others with the reasons."""
        origin = [(stored, row) for stored, rows in batch.messages for row in rows]
        rows = [row for _, row in origin]
        bad = await self._projection.do(lambda c: writer.find_bad(c, rows))
        reasons: dict[tuple[Log, int], tuple[Stored, str]] = {}
        for index, reason in bad.items():
            stored = origin[index][0]
            reasons.setdefault((stored.log, stored.sequence), (stored, reason))
        return [row for index, row in enumerate(rows) if index not in bad], list(reasons.values())

    async def _bury_all(self, refused: Sequence[tuple[Stored, str]]) -> None:
        """Before the position passes them."""
        for stored, reason in refused:
            log.warning("dead letter", log=stored.log, sequence=stored.sequence, reason=reason)
            await self._bury(stored, reason)

    async def close_what_ended(self) -> None:
        """Close every end of the run that all logs have been read to."""
        at = {of: position.sequence for of, position in self.positions.items()}
        for index, end in enumerate(self.endings):
            if not end.closed and end.reached(at):
                await self._projection.do(lambda c, end=end: closing.close(c, self._bus.run, end))
                self.endings[index] = replace(end, closed=True)
