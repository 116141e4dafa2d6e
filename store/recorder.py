"""The recorder: follows every log of a run and writes what happened to Postgres, in batches, idempotently.

Rows and cursors are committed together, so a crash loses nothing and repeats nothing that matters.
Postgres may be away: the recorder waits, visibly, and catches up; the run goes on meanwhile.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import structlog

from broker.bus import Bus, Stored
from broker.errors import SluiceError
from broker.messages import ReaderAdvanced, RunStarted
from broker.telemetry import Health, dead_letters_total, messages_total, now_us, writer_id
from broker.topology import Log, kind_subjects
from store import closing, writer
from store.database import Connection, transaction
from store.intake import CHUNKS_WAITING, LOGS, Batch, Chunk, collect, follow
from store.projection import Projection, Stopped
from store.row import Row
from store.settings import StoreSettings
from store.writer import BadRow, Position

log = structlog.get_logger()

ADVANCE_S = 2.0
"""ReaderAdvanced is published at most this often."""
LAST_ADVANCE_S = 5.0
BEAT_S = 0.5
ROLE = "recorder"


async def run(
    bus: Bus, *, url: str, settings: StoreSettings, health: Health, stop: asyncio.Event
) -> None:
    """Record until `stop`, or until the run has ended and everything that counts is written.

    Unreachable when Postgres is not there at the start within `settings.connect_wait_s`; once begun, the
    recorder waits for it as long as it takes.
    """
    projection = Projection(url, health=health, stop=stop)
    recorder = Recorder(bus, projection, settings, health, stop)
    try:
        async with asyncio.TaskGroup() as group:
            helpers = [group.create_task(_beat(health))]
            try:
                await projection.open(settings.connect_wait_s)
                await recorder.record(group, helpers)
            finally:
                for helper in helpers:
                    helper.cancel()
    except* SluiceError as failures:
        raise failures.exceptions[0] from None
    finally:
        projection.close()


async def _beat(health: Health) -> None:
    while True:
        health.beat()
        await asyncio.sleep(BEAT_S)


class Recorder:
    """The positions of one run's recorder, and how a batch moves them."""

    def __init__(
        self,
        bus: Bus,
        projection: Projection,
        settings: StoreSettings,
        health: Health,
        stop: asyncio.Event,
    ) -> None:
        self._bus = bus
        self._projection = projection
        self._settings = settings
        self._health = health
        self._stop = stop
        self._writer_id = writer_id(ROLE)
        self._positions: dict[str, Position] = {}
        self._endings: list[closing.Ending] = []
        self._started_at = 0
        self._news: dict[Log, int] = {}
        self._advanced: dict[Log, int] = {}

    async def record(self, group: asyncio.TaskGroup, helpers: list[asyncio.Task[None]]) -> None:
        chunks: asyncio.Queue[Chunk] = asyncio.Queue(CHUNKS_WAITING)
        try:
            await self._load()
            for of in LOGS:
                after = self._position(of).sequence
                helpers.append(group.create_task(follow(self._bus, of, after, chunks)))
            helpers.append(group.create_task(self._advance_now_and_then()))
            while not await self._finished() and not self._stop.is_set():
                batch = await collect(
                    chunks,
                    self._bus.run,
                    self._endings,
                    rows=self._settings.batch_rows,
                    first_wait_s=self._settings.flush_s,
                    flush_s=self._settings.flush_s,
                )
                if batch.sequences:
                    await self._store(batch)
        except Stopped:
            return
        try:
            async with asyncio.timeout(LAST_ADVANCE_S):
                await self._advance()
        except TimeoutError:  # the next start tells it
            log.warning("could not tell how far the logs are recorded", limit_s=LAST_ADVANCE_S)

    async def _load(self) -> None:
        run_id = self._bus.run
        self._positions = await self._projection.do(lambda c: writer.positions(c, run_id))
        self._endings = await self._projection.do(lambda c: closing.endings(c, run_id))
        self._started_at = await self._projection.do(lambda c: _started_at(c, run_id))

    def _position(self, of: Log) -> Position:
        return self._positions.get(of, Position())

    async def _store(self, batch: Batch) -> None:
        await self._bury(batch.undecodable)
        dead = Counter(stored.log for stored, _ in batch.undecodable)
        rows = [row for _, found in batch.messages for row in found]
        try:
            await self._write(rows, batch.sequences, dead)
        except BadRow as error:
            log.warning("a row was refused", reason=str(error))
            rows, refused = await self._without_refused(batch)
            await self._bury(refused)
            dead.update(stored.log for stored, _ in refused)
            await self._write(rows, batch.sequences, dead)
        self._endings += batch.endings
        self._news |= batch.news
        self._started_at = max(self._started_at, batch.started_at)
        messages_total.labels(ROLE, "ok").inc(len(batch.messages))
        self._health.note(recorded={of: at.sequence for of, at in self._positions.items()})

    async def _write(
        self, rows: Sequence[Row], sequences: Mapping[Log, int], dead: Mapping[Log, int]
    ) -> None:
        moved: dict[str, Position] = {
            of: Position(sequence, self._position(of).dead_lettered + dead.get(of, 0))
            for of, sequence in sequences.items()
        }
        now = datetime.now(UTC)
        await self._projection.do(lambda c: writer.write(c, self._bus.run, rows, moved, now=now))
        self._positions |= moved

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

    async def _bury(self, refused: Sequence[tuple[Stored, str]]) -> None:
        """Copies to DEAD, before the cursor passes them."""
        for stored, reason in refused:
            log.warning("dead letter", log=stored.log, sequence=stored.sequence, reason=reason)
            await self._bus.dead_letter(stored, reason)
            dead_letters_total.labels(ROLE).inc()

    async def _finished(self) -> bool:
        """Closes what can be closed; true when the run's newest end is closed and none follows."""
        at = {of: position.sequence for of, position in self._positions.items()}
        for index, end in enumerate(self._endings):
            if not end.closed and end.reached(at):
                await self._projection.do(lambda c, end=end: closing.close(c, self._bus.run, end))
                self._endings[index] = replace(end, closed=True)
        if not self._endings or not self._endings[-1].closed:
            return False
        newest = self._endings[-1].event_id
        if newest < self._started_at:
            return False
        resumed = await self._bus.last(Log.LEDGER, kind_subjects(self._bus.run, RunStarted.KIND))
        return resumed is None or resumed.sequence < newest

    async def _advance_now_and_then(self) -> None:
        # Apart from the writing: a full LEDGER makes publishers wait, and space comes from reading on.
        while True:
            await asyncio.sleep(ADVANCE_S)
            await self._advance()

    async def _advance(self) -> None:
        # What was written until now; telling of it is no news, or it would go on for ever.
        for of, news in sorted(self._news.items()):
            if news > self._advanced.get(of, 0):
                sequence = self._position(of).sequence
                self._advanced[of] = sequence
                event = ReaderAdvanced(
                    writer_id=self._writer_id,
                    at_us=now_us(),
                    reader=ROLE,
                    log=of,
                    sequence=sequence,
                )
                await self._bus.publish(event)


def _started_at(connection: Connection, run_id: str) -> int:
    """LEDGER sequence of the RunStarted in force; 0 when the run is unknown or has ended since."""
    with transaction(connection):
        found = connection.execute(
            "SELECT last_event_id FROM run WHERE run_id = %s AND status IN ('running', 'draining')",
            [run_id],
        ).fetchone()
    return 0 if found is None else int(found[0])
