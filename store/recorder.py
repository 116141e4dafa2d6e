"""The recorder: follows every log of a run and writes what happened to Postgres, in batches, idempotently.

Rows and cursors are committed together, so a crash loses nothing and repeats nothing that matters.
Postgres may be away: the recorder waits, visibly, and catches up; the run goes on meanwhile.
"""

import asyncio

import structlog

from broker.bus import Bus, Stored
from broker.errors import SluiceError
from broker.messages import Incident, ReaderAdvanced, RunStarted
from broker.telemetry import Health, dead_letters_total, messages_total, now_us, writer_id
from broker.topology import Log, kind_subjects
from store.database import Connection, transaction
from store.intake import CHUNKS_WAITING, Batch, Chunk, batches, follow
from store.projection import Projection, Stopped, short_turns
from store.recording import Recording
from store.settings import StoreSettings

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
        with short_turns():
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
    """Follows the logs of one run into its record, and tells how far it is."""

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
        self._record = Recording(bus, projection, self._bury)
        self._started_at = 0
        self._news: dict[Log, int] = {}
        self._advanced: dict[Log, int] = {}

    async def record(self, group: asyncio.TaskGroup, helpers: list[asyncio.Task[None]]) -> None:
        chunks: asyncio.Queue[Chunk] = asyncio.Queue(CHUNKS_WAITING)
        decoded: asyncio.Queue[Batch] = asyncio.Queue(1)
        rows, flush_s = self._settings.batch_rows, self._settings.flush_s
        try:
            await self._record.load()
            run_id = self._bus.run
            self._started_at = await self._projection.do(lambda c: _started_at(c, run_id))
            await self._tell_gaps()
            for of, after in self._record.sequences().items():
                helpers.append(group.create_task(follow(self._bus, of, after, chunks)))
            first = Batch(run_id, self._record.sequences(), list(self._record.endings))
            reading = batches(chunks, first, decoded, rows=rows, flush_s=flush_s)
            helpers.append(group.create_task(reading))
            helpers.append(group.create_task(self._advance_now_and_then()))
            while not await self._finished() and not self._stop.is_set():
                try:
                    async with asyncio.timeout(flush_s):
                        batch = await decoded.get()
                except TimeoutError:
                    continue
                await self._store(batch)
        except Stopped:
            return
        try:
            async with asyncio.timeout(LAST_ADVANCE_S):
                await self._advance()
        except TimeoutError:  # the next start tells it
            log.warning("could not tell how far the logs are recorded", limit_s=LAST_ADVANCE_S)

    async def _store(self, batch: Batch) -> None:
        await self._record.store(batch)
        self._news |= batch.news
        self._started_at = max(self._started_at, batch.started_at)
        messages_total.labels(ROLE, "ok").inc(len(batch.messages))
        self._health.note(recorded=self._record.sequences())
        await self._tell_gaps()

    async def _bury(self, stored: Stored, reason: str) -> None:
        await self._bus.dead_letter(stored, reason)
        dead_letters_total.labels(ROLE).inc()

    async def _tell_gaps(self) -> None:
        """What this store will never hold: its database is younger than the run, or lost something."""
        while self._record.gaps:
            gap = self._record.gaps[0]
            await self._bus.publish(
                Incident(
                    writer_id=self._writer_id,
                    at_us=now_us(),
                    kind="purged_unrecorded",
                    role=ROLE,
                    detail=f"{gap} purged before recorded",
                )
            )
            self._record.gaps.pop(0)

    async def _finished(self) -> bool:
        """Closes what can be closed; true when the run's newest end is closed and none follows."""
        await self._record.close_what_ended()
        endings = self._record.endings
        if not endings or not endings[-1].closed:
            return False
        newest = endings[-1].event_id
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
                sequence = self._record.position(of).sequence
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
