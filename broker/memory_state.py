"""What a `MemoryServer` holds: logs, objects and durable readers of every run, all in one process."""

import asyncio
import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from broker.bus import Stored
from broker.packing import LOG_SHARE, Packed, subject_matches
from broker.telemetry import now_us
from broker.topology import READERS, Log, Reader


class Bell:
    """Wakes everybody who waits for a change."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    async def wait(self, wait_s: float) -> None:
        """Until it rings, or the time is over."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            async with asyncio.timeout(max(wait_s, 0.0)):
                await future
        except TimeoutError:
            return
        finally:
            self._waiting.discard(future)


@dataclass
class MemoryLog:
    """One log: what is in it, in order, and the newest message of every subject."""

    log: Log
    limit_bytes: int
    messages: dict[int, tuple[Packed, int]] = field(default_factory=dict)
    """Sequence -> message and when it was stored, microseconds."""
    by_subject: dict[str, list[int]] = field(default_factory=dict)
    last: int = 0
    bytes: int = 0

    def newest(self, subject: str) -> int:
        return (self.by_subject.get(subject) or [0])[-1]

    def has_room(self, batch: Sequence[Packed]) -> bool:
        return self.bytes + sum(packed.size for packed in batch) <= self.limit_bytes

    def append(self, packed: Packed) -> int:
        self.last += 1
        self.messages[self.last] = (packed, now_us())
        self.by_subject.setdefault(packed.subject, []).append(self.last)
        self.bytes += packed.size
        return self.last

    def remove(self, sequence: int) -> Packed:
        packed, _ = self.messages.pop(sequence)
        self.by_subject[packed.subject].remove(sequence)
        self.bytes -= packed.size
        return packed

    def after(self, position: int, subjects: Sequence[str]) -> Iterator[int]:
        """Sequences above a position, under any of the subjects (all, when there are none)."""
        first = next(iter(self.messages), self.last + 1)
        for sequence in range(max(position + 1, first), self.last + 1):
            found = self.messages.get(sequence)
            if found is not None and (
                not subjects or any(subject_matches(s, found[0].subject) for s in subjects)
            ):
                yield sequence


class MemoryRun:
    """The logs, objects and readers of one run."""

    def __init__(self, log_bytes: int) -> None:
        self.logs = {log: MemoryLog(log, log_bytes) for log in Log}
        self.objects: dict[str, bytes] = {}
        self.leases: dict[str, tuple[bytes, int]] = {}
        """Role -> value and revision."""
        self.readers = {reader.name: MemoryReader(reader) for reader in READERS}
        self.statuses: list[tuple[object, Callable[[], Mapping[str, object]]]] = []
        """With the bus that answers."""
        self.bell = Bell()

    @property
    def bytes(self) -> int:
        objects = sum(len(data) for data in self.objects.values())
        return objects + sum(log.bytes for log in self.logs.values())

    def stored(self, log: Log, sequence: int, *, headers_only: bool = False) -> Stored | None:
        """With its body from the object store, if that is where it lies."""
        found = self.logs[log].messages.get(sequence)
        if found is None:
            return None
        packed, stored_at_us = found
        data = packed.data
        if packed.object_name is not None:
            data = self.objects.get(packed.object_name, b"")
        return Stored(
            log=log,
            sequence=sequence,
            subject=packed.subject,
            headers=dict(packed.headers),
            data=b"" if headers_only else data,
            stored_at_us=stored_at_us,
        )


class MemoryServer:
    """What several buses of one process share."""

    def __init__(
        self,
        *,
        log_bytes: int = 1 << 30,
        message_bytes: int = 8 * 1024 * 1024,
        store_bytes: int | None = None,
    ) -> None:
        self._log_bytes = log_bytes
        self.store_bytes = store_bytes
        """Of all runs' logs and objects together; None: no limit."""
        self.message_bytes = min(message_bytes, log_bytes // LOG_SHARE)
        """Packed messages above this size leave their body in the object store."""
        self._runs: dict[str, MemoryRun] = {}

    def run(self, name: str) -> MemoryRun:
        return self._runs.setdefault(name, MemoryRun(self._log_bytes))

    def has_room(self) -> bool:
        """Like nats-server, which takes a message as long as it is not over its limit already."""
        return self.store_bytes is None or self.store_bytes >= sum(
            run.bytes for run in self._runs.values()
        )


class MemoryReader:
    """A durable reader: who has what, until when, and what is due again."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.position = 0
        self.held: dict[int, float] = {}
        """Sequence -> when it is delivered again unless acknowledged, on the monotonic clock."""
        self.deliveries: dict[int, int] = {}
        self.due: list[tuple[float, int]] = []
        """Heap of handed back messages: when, sequence."""

    def expire(self, now: float) -> None:
        for sequence in [s for s, until in self.held.items() if until <= now]:
            del self.held[sequence]
            heapq.heappush(self.due, (now, sequence))

    def next_due(self) -> float | None:
        times = [*self.held.values(), *(when for when, _ in self.due[:1])]
        return min(times, default=None)

    def take(self, log: MemoryLog, subjects: Sequence[str], limit: int, now: float) -> list[int]:
        """Sequences to deliver now; they are held from here on."""
        self.expire(now)
        found: list[int] = []
        room = min(limit, self.reader.max_ack_pending - len(self.held))
        while self.due and self.due[0][0] <= now and len(found) < room:
            _, sequence = heapq.heappop(self.due)
            if sequence in log.messages:
                found.append(sequence)
        for sequence in log.after(self.position, subjects):
            if len(found) >= room:
                break
            self.position = sequence
            found.append(sequence)
        for sequence in found:
            self.held[sequence] = now + self.reader.ack_wait_s
            self.deliveries[sequence] = self.deliveries.get(sequence, 0) + 1
        return found

    def pending(self, log: MemoryLog, subjects: Sequence[str]) -> int:
        waiting = sum(sequence in log.messages for _, sequence in self.due)
        return len(self.held) + waiting + sum(1 for _ in log.after(self.position, subjects))
