"""What the recorder reads: five logs side by side, turned into rows, in batches of bounded size."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from broker.bus import Bus, Stored
from broker.codec import decode
from broker.errors import Poison
from broker.messages import GroupKey, ReaderAdvanced, RunEnded, RunStarted
from broker.topology import Log
from store.closing import Ending, ending
from store.gaps import Gap
from store.projection import in_thread
from store.row import Row
from store.rows import rows_of
from store.writer import BadRow, Encoded, encoded

LOGS = (Log.REQUESTS, Log.GENERATED, Log.VERIFIED, Log.ANNOTATED, Log.LEDGER)
READ_WAIT_S = 1.0
CHUNK_BYTES = 4 * 1024 * 1024
"""About as much is read from a log at once; there is one chunk a log and a few waiting."""
CHUNK_MESSAGES = 500
CHUNKS_WAITING = 5
BATCH_BYTES = 32 * 1024 * 1024
"""A batch is full with this much, however few its rows are."""
UNINTERRUPTED_S = 0.01
"""Decoding must not hold up the heartbeat, nor whoever else runs in this process."""

Chunk = list[Stored]

UNREAD: Mapping[Log, Mapping[str, object]] = {
    Log.VERIFIED: {"generations": (), "request": None},
    Log.ANNOTATED: {"generations": (), "request": None},
}
"""What a message repeats of those before it, recorded from their own logs."""


@dataclass
class Batch:
    """Messages of one run that will be written together."""

    run_id: str
    sequences: dict[Log, int]
    """Last sequence read of each log, at first of what was written before."""
    late: Sequence[Ending]
    """Ends of the run that are known."""
    moved: set[Log] = field(default_factory=set)
    """Logs that the batch takes further."""
    gaps: list[Gap] = field(default_factory=list)
    messages: list[tuple[Stored, list[Row]]] = field(default_factory=list)
    undecodable: list[tuple[Stored, str]] = field(default_factory=list)
    """With the reason."""
    news: dict[Log, int] = field(default_factory=dict)
    """Last sequence that is worth telling others of: not their own telling."""
    endings: list[Ending] = field(default_factory=list)
    started_at: int = 0
    """LEDGER sequence of the newest RunStarted in the batch; 0: none."""
    encoded: Encoded | None = None
    """Its rows, once they are ready to be written; None also when one of them is refused."""
    row_count: int = 0
    byte_count: int = 0

    def full(self, rows: int) -> bool:
        """Whether it holds about `rows` rows, or as many bytes as a batch may."""
        return self.row_count >= rows or self.byte_count >= BATCH_BYTES

    def rows(self) -> list[Row]:
        return [row for _, found in self.messages for row in found]

    def next(self) -> "Batch":
        """The one that goes on where this one ends."""
        return Batch(self.run_id, dict(self.sequences), [*self.late, *self.endings])

    def add(self, stored: Stored) -> None:
        """Decode one message; output for a group that an earlier end of the run closed is passed over."""
        before = self.sequences.get(stored.log, 0)
        if stored.sequence > before + 1:  # a log has no holes but where it was purged
            self.gaps.append(Gap(stored.log, before + 1, stored.sequence - 1))
        self.sequences[stored.log] = stored.sequence
        self.moved.add(stored.log)
        self.byte_count += len(stored.data)
        try:
            event = decode(stored.data, unread=UNREAD.get(stored.log))
            if not isinstance(event, ReaderAdvanced):
                self.news[stored.log] = stored.sequence
            group = getattr(event, "group", None)
            if isinstance(group, GroupKey) and any(
                end.is_late(stored.log, stored.sequence, group.request_seq) for end in self.late
            ):
                return
            rows = rows_of(self.run_id, stored.sequence, event)
        except Poison as error:
            self.undecodable.append((stored, str(error)))
            return
        if isinstance(event, RunEnded):
            self.endings.append(ending(stored.sequence, event))
        elif isinstance(event, RunStarted):
            self.started_at = stored.sequence
        self.messages.append((stored, rows))
        self.row_count += len(rows)


async def follow(bus: Bus, log: Log, after: int, chunks: asyncio.Queue[Chunk]) -> None:
    """Read a log from its position for ever; cancelled when the recorder is done."""
    cursor = await bus.cursor(log, after)
    limit = 1
    try:
        while True:
            found = await cursor.read(limit, READ_WAIT_S)
            if found:
                await chunks.put(found)
                mean_bytes = sum(len(stored.data) for stored in found) // len(found) + 1
                limit = max(1, min(CHUNK_MESSAGES, CHUNK_BYTES // mean_bytes))
    finally:
        await cursor.close()


async def batches(
    chunks: asyncio.Queue[Chunk],
    first: Batch,
    found: asyncio.Queue[Batch],
    *,
    rows: int,
    flush_s: float,
) -> None:
    """Batch after batch into `found`, for ever: the next ones are made ready while Postgres takes one."""
    batch = first
    while True:
        await collect(chunks, batch, rows=rows, flush_s=flush_s)
        with suppress(BadRow):  # writing it finds which
            batch.encoded = await in_thread(partial(encoded, batch.rows()))
        await found.put(batch)
        batch = batch.next()


async def collect(chunks: asyncio.Queue[Chunk], batch: Batch, *, rows: int, flush_s: float) -> None:
    """Into `batch` the next message and what comes within `flush_s`, up to about `rows` rows."""
    deadline = None
    while not batch.full(rows):
        try:
            async with asyncio.timeout_at(deadline):
                found = await chunks.get()
        except TimeoutError:
            break
        if deadline is None:
            deadline = asyncio.get_running_loop().time() + flush_s
        since = time.monotonic()
        for stored in found:
            batch.add(stored)
            if time.monotonic() - since > UNINTERRUPTED_S:
                await asyncio.sleep(0)
                since = time.monotonic()
