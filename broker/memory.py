"""The Bus in one process, for tests and simulations; held to the same contract tests as JetStream.

Roles under test share one `MemoryServer`: each has its own `MemoryBus` on it. Messages are kept
packed, so that nothing passes that could not travel.
"""

import heapq
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from broker.bus import Delivery, LogState, Stored
from broker.errors import Conflict
from broker.memory_state import Bell, MemoryLog, MemoryReader, MemoryRun, MemoryServer
from broker.messages import Event
from broker.packing import Packed, check_batch, dead_copy, pack, without_body
from broker.telemetry import Health, events_total, publish_waits_total
from broker.topology import Log, Reader, is_unretained

SPACE_CHECK_S = 0.05


@dataclass
class MemoryDelivery:
    stored: Stored
    deliveries: int
    _state: MemoryReader
    _bell: Bell

    async def ack(self) -> None:
        # Also when it has been delivered again meanwhile: the work is done.
        self._state.held.pop(self.stored.sequence, None)
        self._state.due = [d for d in self._state.due if d[1] != self.stored.sequence]
        heapq.heapify(self._state.due)
        self._bell.ring()

    async def retry(self, delay_s: float) -> None:
        if self._state.held.pop(self.stored.sequence, None) is not None:
            due = (time.monotonic() + max(delay_s, 0.0), self.stored.sequence)
            heapq.heappush(self._state.due, due)
        self._bell.ring()

    async def progress(self) -> None:
        if self.stored.sequence in self._state.held:
            ack_wait_s = self._state.reader.ack_wait_s
            self._state.held[self.stored.sequence] = time.monotonic() + ack_wait_s


class MemoryConsumer:
    def __init__(self, run_name: str, run: MemoryRun, reader: Reader) -> None:
        self._run = run
        self._log = run.logs[reader.log]
        self._subjects = reader.subjects(run_name)
        self._state = run.readers.setdefault(reader.name, MemoryReader(reader))

    async def fetch(self, limit: int, wait_s: float) -> list[Delivery]:
        deadline = time.monotonic() + wait_s
        while True:
            now = time.monotonic()
            taken = self._state.take(self._log, self._subjects, limit, now)
            if taken or now >= deadline:
                return [self._delivery(sequence) for sequence in taken]
            until = min(deadline, self._state.next_due() or deadline)
            await self._run.bell.wait(until - now)

    def _delivery(self, sequence: int) -> Delivery:
        stored = self._run.stored(self._log.log, sequence)
        assert stored is not None  # taken from the log just now
        count = self._state.deliveries[sequence]
        return MemoryDelivery(stored, count, self._state, self._run.bell)

    async def close(self) -> None:
        """Nothing is kept back."""


class MemoryCursor:
    def __init__(
        self, run: MemoryRun, log: Log, after: int, subjects: Sequence[str], headers_only: bool
    ) -> None:
        self.position = after
        self._run = run
        self._log = log
        self._subjects = tuple(subjects)
        self._headers_only = headers_only

    async def read(self, limit: int, wait_s: float) -> list[Stored]:
        deadline = time.monotonic() + wait_s
        while True:
            found: list[Stored] = []
            for sequence in self._run.logs[self._log].after(self.position, self._subjects):
                stored = self._run.stored(self._log, sequence, headers_only=self._headers_only)
                if len(found) == limit or stored is None:
                    break
                found.append(stored)
            if found:
                self.position = found[-1].sequence
                return found
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return []
            await self._run.bell.wait(left_s)

    async def close(self) -> None:
        """Nothing is kept on the server."""


class MemoryBus:
    """The logs of one run on a `MemoryServer`. See `broker.bus.Bus`."""

    def __init__(self, server: MemoryServer, run: str, *, health: Health | None = None) -> None:
        self.run = run
        self._server = server
        self._state = server.run(run)
        self._health = health

    async def publish(
        self, event: Event, *, expect_subject: int | None = None, expect_log: int | None = None
    ) -> int:
        packed = pack(self.run, event)
        expect = {} if expect_subject is None else {packed.subject: expect_subject}
        sequence = await self._store([packed], expect, expect_log)
        events_total.labels(event.KIND).inc()
        return sequence

    async def publish_batch(self, events: Sequence[Event], *, expect_log: int | None = None) -> int:
        batch = [pack(self.run, event) for event in events]
        check_batch(batch)
        sequence = await self._store(batch, {packed.subject: 0 for packed in batch}, expect_log)
        for event in events:
            events_total.labels(event.KIND).inc()
        return sequence

    async def _store(
        self, batch: list[Packed], expect: Mapping[str, int], expect_log: int | None
    ) -> int:
        batch = [self._stow(packed) for packed in batch]
        log = self._state.logs[batch[0].log]
        while True:
            conflict = _first_conflict(log, batch, expect, expect_log)
            if conflict is not None:
                return self._already_stored(log, batch, conflict)
            if log.has_room(batch) and self._server.has_room():
                break
            if log.log is Log.DEAD and log.messages and not log.has_room(batch):
                log.remove(next(iter(log.messages)))
                continue
            publish_waits_total.labels(str(log.log)).inc()
            with self._waiting_for(f"space in {log.log}"):
                await self._state.bell.wait(SPACE_CHECK_S)
        for packed in batch:
            log.append(packed)
        self._state.bell.ring()
        return log.last

    def _already_stored(self, log: MemoryLog, batch: list[Packed], conflict: Conflict) -> int:
        """The sequence of the last when all are stored with our bytes; else the conflict."""
        newest = [log.newest(packed.subject) for packed in batch]
        for packed, sequence in zip(batch, newest, strict=True):
            found = log.messages.get(sequence)
            ours = (packed.data, packed.object_name)
            if found is None or (found[0].data, found[0].object_name) != ours:
                self._discard(batch, log)
                raise conflict
        return max(newest)

    def _stow(self, packed: Packed) -> Packed:
        if packed.size <= self._server.message_bytes:
            return packed
        checked = without_body(packed)
        assert checked.object_name is not None  # without_body names one
        self._state.objects[checked.object_name] = packed.data
        return checked

    def _discard(self, refused: Sequence[Packed], log: MemoryLog) -> None:
        """Bodies that no message names."""
        for packed in refused:
            newest = log.messages.get(log.newest(packed.subject))
            named = newest is not None and newest[0].object_name == packed.object_name
            if packed.object_name is not None and not named:
                self._state.objects.pop(packed.object_name, None)

    def _waiting_for(self, what: str) -> AbstractContextManager[None]:
        return self._health.waiting_for(what, None) if self._health else nullcontext()

    async def last(self, log: Log, subject_filter: str) -> Stored | None:
        sequences = list(self._state.logs[log].after(0, [subject_filter]))
        return self._state.stored(log, sequences[-1]) if sequences else None

    async def get(self, log: Log, sequence: int) -> Stored | None:
        return self._state.stored(log, sequence)

    async def state(self, log: Log) -> LogState:
        found = self._state.logs[log]
        return LogState(
            first=next(iter(found.messages), found.last + 1),
            last=found.last,
            messages=len(found.messages),
            bytes=found.bytes,
            limit_bytes=found.limit_bytes,
            pending={
                state.reader.name: state.pending(found, state.reader.subjects(self.run))
                for state in self._state.readers.values()
                if state.reader.log is log
            },
        )

    async def cursor(
        self, log: Log, after: int, subjects: Sequence[str] = (), *, headers_only: bool = False
    ) -> MemoryCursor:
        return MemoryCursor(self._state, log, after, subjects, headers_only)

    async def consumer(self, reader: Reader) -> MemoryConsumer:
        return MemoryConsumer(self.run, self._state, reader)

    async def dead_letter(self, stored: Stored, reason: str) -> None:
        copy = dead_copy(self.run, stored, reason, self._server.message_bytes)
        if self._state.logs[Log.DEAD].newest(copy.subject) == 0:
            await self._store([copy], {}, None)

    async def purge(self, log: Log, up_to: int, *, keep_last_per_subject: bool = False) -> int:
        found = self._state.logs[log]
        doomed = [sequence for sequence in found.messages if sequence <= up_to]
        if keep_last_per_subject:
            kept = {
                sequences[-1]
                for subject, sequences in found.by_subject.items()
                if sequences and not is_unretained(subject)
            }
            doomed = [sequence for sequence in doomed if sequence not in kept]
        for sequence in doomed:
            packed = found.remove(sequence)
            if packed.object_name is not None:
                self._state.objects.pop(packed.object_name, None)
        self._state.bell.ring()
        return len(doomed)

    async def has_room(self) -> bool:
        return self._server.has_room()

    async def put_object(self, name: str, chunks: bytes) -> None:
        self._state.objects[name] = bytes(chunks)

    async def get_object(self, name: str, *, wait_s: float) -> bytes | None:
        return self._state.objects.get(name)

    async def delete_object(self, name: str) -> None:
        self._state.objects.pop(name, None)

    async def list_objects(self, prefix: str) -> list[str]:
        return sorted(name for name in self._state.objects if name.startswith(prefix))

    async def read_lease(self, role: str) -> tuple[bytes | None, int]:
        return self._state.leases.get(role, (None, 0))

    async def write_lease(self, role: str, value: bytes, *, expect: int) -> int:
        found, revision = await self.read_lease(role)
        if revision != expect:
            if found == value:
                return revision
            raise Conflict(f"lease of {role}", expect)
        self._state.leases[role] = value, revision + 1
        return revision + 1

    async def delete_unfinished_objects(self, age_s: float) -> int:
        return 0  # an object is stored at once or not at all

    async def answer_status(self, status: Callable[[], Mapping[str, object]]) -> None:
        self._state.statuses.append((self, status))

    async def ask_status(self, wait_s: float) -> list[Mapping[str, object]]:
        return [dict(status()) for _, status in self._state.statuses]

    async def close(self) -> None:
        self._state.statuses = [kept for kept in self._state.statuses if kept[0] is not self]


def _first_conflict(
    log: MemoryLog, batch: Sequence[Packed], expect: Mapping[str, int], expect_log: int | None
) -> Conflict | None:
    if expect_log is not None and log.last != expect_log:
        return Conflict(batch[0].subject, expect_log)
    for packed in batch:
        wanted = expect.get(packed.subject)
        if wanted is not None and log.newest(packed.subject) != wanted:
            return Conflict(packed.subject, wanted)
    return None
