"""A run's decisions and verified groups read back from its logs, for looking at them once more."""

from collections.abc import AsyncIterator, Mapping, Sequence

from broker.bus import Bus, Cursor, Stored
from broker.codec import decode
from broker.errors import Poison, TooLong
from broker.messages import Annotation, GroupAnnotated, GroupVerified
from broker.topology import Log, kind_subjects
from workers.policies.decisions import Recorded
from workers.policies.ledger import LedgerView
from workers.policies.order import Arrival
from workers.policies.restart import recorded

READ_LIMIT = 64
READ_WAIT_S = 10.0
UNREAD: Mapping[str, object] = {"generations": (), "request": None}
"""Of a decision; VERIFIED has them."""


async def decisions_on_record(bus: Bus) -> tuple[Recorded, Mapping[str, Sequence[Annotation]]]:
    """Outcome and window of every group in ANNOTATED, and its annotations by group id."""
    headers: list[Stored] = []
    annotations: dict[str, Sequence[Annotation]] = {}
    async for stored in _all(bus, Log.ANNOTATED, kind_subjects(bus.run, GroupAnnotated.KIND)):
        headers.append(stored)
        try:
            event = decode(stored.data, unread=UNREAD)
        except Poison:
            continue  # no policy of this version wrote it
        if isinstance(event, GroupAnnotated):
            annotations[event.group.group_id] = event.annotations
    return recorded(headers, LedgerView()), annotations


async def train_groups(bus: Bus) -> AsyncIterator[Arrival]:
    """Every train group of VERIFIED, in log order; one that cannot be read has failed in the run too."""
    subject = kind_subjects(bus.run, GroupVerified.KIND, "train")
    async for stored in _all(bus, Log.VERIFIED, subject):
        try:
            event = stored.event()
        except Poison:
            continue
        if isinstance(event, GroupVerified):
            yield Arrival(stored.sequence, event)


async def _all(bus: Bus, log: Log, subject: str) -> AsyncIterator[Stored]:
    """What is there now under a subject; TooLong when it does not come."""
    newest = await bus.last(log, subject)
    if newest is None:
        return
    cursor: Cursor = await bus.cursor(log, 0, [subject])
    try:
        while cursor.position < newest.sequence:
            found = await cursor.read(READ_LIMIT, READ_WAIT_S)
            if not found:
                raise TooLong(
                    f"{log}: nothing after {cursor.position} of {newest.sequence} "
                    f"within {READ_WAIT_S:.0f} s"
                )
            for stored in found:
                yield stored
    finally:
        await cursor.close()
