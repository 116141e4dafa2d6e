"""An event as it lies in a log: subject, headers, body. Shared by every bus."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from broker.bus import Stored
from broker.codec import encode
from broker.messages import Event
from broker.topology import H_OBJECT, Log, headers, log_of, subject

H_DEAD_REASON, H_DEAD_LOG = "Sluice-Dead-Reason", "Sluice-Dead-Log"
H_DEAD_SEQUENCE, H_DEAD_SUBJECT = "Sluice-Dead-Sequence", "Sluice-Dead-Subject"

BATCH_LIMIT = 1000
"""Events of one atomic batch; nats-server's own limit."""
LOG_SHARE = 8
"""A message may fill at most this part of its log; larger bodies go to the object store."""


@dataclass(frozen=True)
class Packed:
    """What a publication consists of, before it has a sequence."""

    log: Log
    subject: str
    headers: Mapping[str, str]
    data: bytes

    @property
    def size(self) -> int:
        """Bytes on the wire, headers included: `NATS/1.0`, one line per header, an empty line."""
        lines = sum(len(key) + len(value.encode()) + 4 for key, value in self.headers.items())
        return len(self.data) + lines + 12

    @property
    def object_name(self) -> str | None:
        return self.headers.get(H_OBJECT)

    def is_stored_as(self, stored: Stored) -> bool:
        """The same bytes, or the same digest where the body lies in the object store."""
        if self.object_name is not None:
            return stored.headers.get(H_OBJECT) == self.object_name
        return H_OBJECT not in stored.headers and stored.data == self.data


def pack(run: str, event: Event) -> Packed:
    return Packed(log_of(event.KIND), subject(run, event), headers(event), encode(event))


def beginning(batch: Sequence[Packed], stored: Sequence[Stored | None]) -> int:
    """How many first messages of a batch are stored, by us, while nothing is of the others; 0 otherwise.

    A server whose store became full in the middle of an atomic batch has left that much of it (seen with
    nats-server 2.14).
    """
    begun = 0
    for packed, found in zip(batch, stored, strict=True):
        if found is None or not packed.is_stored_as(found):
            break
        begun += 1
    return begun if all(found is None for found in stored[begun:]) else 0


def without_body(packed: Packed) -> Packed:
    """The claim check: an empty body, and a header that names the object by digest."""
    digest = hashlib.sha256(packed.data).hexdigest()
    name = f"{objects_prefix(packed.log)}{digest}"
    return replace(packed, headers={**packed.headers, H_OBJECT: name}, data=b"")


def objects_prefix(log: Log) -> str:
    """Where the bodies of a log's large messages lie."""
    return f"groups/{log}/"


def dead_copy(run: str, stored: Stored, reason: str, limit_bytes: int) -> Packed:
    """The record of a message that could not be handled.

    Its body is copied when it fits into one message; a larger one stays named by `Sluice-Object`
    for as long as the log holds the original.
    """
    found = {
        **stored.headers,
        H_DEAD_REASON: re.sub(r"[^\x20-\x7e]+", " ", reason)[:1000],
        H_DEAD_LOG: str(stored.log),
        H_DEAD_SEQUENCE: str(stored.sequence),
        H_DEAD_SUBJECT: stored.subject,
    }
    copy = Packed(Log.DEAD, f"sluice.{run}.dead.{stored.log}.{stored.sequence}", found, stored.data)
    return copy if copy.size <= limit_bytes else replace(copy, data=b"")


def check_batch(batch: list[Packed]) -> None:
    """A batch that breaks the rules is a bug of the caller's, found before anything is sent."""
    if not 1 <= len(batch) <= BATCH_LIMIT:
        raise ValueError(f"batch of {len(batch)} events; expected 1 to {BATCH_LIMIT}")
    if len({packed.log for packed in batch}) != 1:
        raise ValueError(f"batch over logs {sorted({p.log for p in batch})}; expected one log")
    if len({packed.subject for packed in batch}) != len(batch):
        raise ValueError("batch names a subject twice; each event must be the first on its own")


def subject_matches(pattern: str, subject: str) -> bool:
    """NATS wildcards: `*` is one token, `>` the rest, at least one."""
    wanted, found = pattern.split("."), subject.split(".")
    for i, token in enumerate(wanted):
        if token == ">":
            return len(found) > i
        if i >= len(found) or token not in ("*", found[i]):
            return False
    return len(wanted) == len(found)
