"""The seam between Sluice and its transport: what a worker may ask of the logs of one run.

Guarantees that every implementation keeps (see tests/contract):
a publication that returns is stored; a refused compare-and-set raises Conflict unless the stored
message is byte for byte the refused one (a lost acknowledgement), which counts as success;
a full log makes publishers wait, nothing is dropped; every read returns within its `wait_s`.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from broker.codec import decode
from broker.messages import Event
from broker.topology import Log, Reader


@dataclass(frozen=True)
class Stored:
    """A message at rest in a log."""

    log: Log
    sequence: int
    subject: str
    headers: Mapping[str, str]
    data: bytes
    """Packed envelope, fetched from the object store if need be; empty when read headers-only."""
    stored_at_us: int

    def event(self) -> Event:
        """Decoded; raises Poison."""
        return decode(self.data)


class Delivery(Protocol):
    """A message handed to one worker of a role, until it is acknowledged."""

    stored: Stored
    deliveries: int
    """1 the first time."""

    async def ack(self) -> None: ...

    async def retry(self, delay_s: float) -> None:
        """Hand it back; it is delivered again after `delay_s`."""
        ...

    async def progress(self) -> None:
        """Still working: the ack wait starts anew."""
        ...


class Consumer(Protocol):
    """This process's end of a durable reader."""

    async def fetch(self, limit: int, wait_s: float) -> list[Delivery]:
        """Up to `limit` deliveries as soon as there is one; empty after `wait_s`."""
        ...

    async def close(self) -> None: ...


class Cursor(Protocol):
    """Reads a log in order from a position of the caller's; needs no acknowledgement."""

    position: int
    """Sequence of the last message read (or the one to start after)."""

    async def read(self, limit: int, wait_s: float) -> list[Stored]:
        """Up to `limit` next messages as soon as there is one, in order, without gaps but purged ones."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True)
class LogState:
    first: int
    """Sequence of the oldest message kept; last + 1 when empty."""
    last: int
    messages: int
    bytes: int
    limit_bytes: int
    pending: dict[str, int] = field(default_factory=dict)
    """Per durable reader of this log: messages not yet acknowledged."""


class Bus(Protocol):
    """The logs, objects and status channel of one run."""

    run: str

    async def publish(
        self, event: Event, *, expect_subject: int | None = None, expect_log: int | None = None
    ) -> int:
        """Store one event; returns its sequence.

        expect_subject: last sequence of the event's own subject (0: first of its kind).
        expect_log: last sequence of the whole log. Conflict when it is another.
        """
        ...

    async def publish_batch(self, events: Sequence[Event], *, expect_log: int | None = None) -> int:
        """Store events of one log, all or nothing, consecutively, each as the first on its subject.

        Returns the sequence of the last. At most 1,000 events.
        """
        ...

    async def last(self, log: Log, subject_filter: str) -> Stored | None:
        """Newest message under a subject (wildcards allowed), read from the leader."""
        ...

    async def get(self, log: Log, sequence: int) -> Stored | None:
        """The message with that sequence, None when purged."""
        ...

    async def state(self, log: Log) -> LogState: ...

    async def cursor(
        self, log: Log, after: int, subjects: Sequence[str] = (), *, headers_only: bool = False
    ) -> Cursor: ...

    async def consumer(self, reader: Reader) -> Consumer: ...

    async def dead_letter(self, stored: Stored, reason: str) -> None:
        """Keep a copy of what could not be handled in DEAD."""
        ...

    async def purge(self, log: Log, up_to: int, *, keep_last_per_subject: bool = False) -> int:
        """Delete messages up to and including a sequence, with the objects they name; how many."""
        ...

    async def has_room(self) -> bool:
        """False when the broker's disk takes nothing at all, whatever the logs' own limits say."""
        ...

    async def put_object(self, name: str, chunks: bytes) -> None: ...

    async def get_object(self, name: str, *, wait_s: float) -> bytes | None:
        """None when there is none that is whole; TooLong without an answer within `wait_s`."""
        ...

    async def delete_object(self, name: str) -> None: ...

    async def list_objects(self, prefix: str) -> list[str]: ...

    async def delete_unfinished_objects(self, age_s: float) -> int:
        """Delete parts of objects whose storing was cut short at least so long ago; of how many."""
        ...

    async def read_lease(self, role: str) -> tuple[bytes | None, int]:
        """(value, revision) of a role's lease, read from the leader; (None, 0) when there is none."""
        ...

    async def write_lease(self, role: str, value: bytes, *, expect: int) -> int:
        """Store a lease in place of revision `expect` (0: the first); returns its revision.

        Conflict as for a publication; only the newest value is kept.
        """
        ...

    async def answer_status(self, status: Callable[[], Mapping[str, object]]) -> None:
        """Answer status questions about this run with what `status()` says."""
        ...

    async def ask_status(self, wait_s: float) -> list[Mapping[str, object]]:
        """What every live process of the run says of itself, gathered for `wait_s`."""
        ...

    async def close(self) -> None: ...


Handler = Callable[[Event], Awaitable[Sequence[Event]]]
"""A stage: one message in, messages out. Raises Retry or Poison; anything else is a bug."""
