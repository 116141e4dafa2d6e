"""A run's decisions and verified groups as its logs hold them, read for the first time or once more."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace

from broker.bus import Bus, Cursor, Stored
from broker.codec import decode
from broker.errors import Poison, TooLong
from broker.messages import Annotation, GroupAnnotated, GroupRequested, GroupVerified
from broker.topology import H_GROUP, H_WRITER, Log, group_from_headers, kind_subjects
from workers.policies.decisions import Recorded
from workers.policies.ledger import LedgerView
from workers.policies.order import Arrival
from workers.policies.restart import recorded

READ_LIMIT = 64
READ_WAIT_S = 10.0
UNREAD: Mapping[str, object] = {"generations": (), "request": None}
"""Of a decision; VERIFIED has them."""


def verified_of(stored: Stored) -> tuple[GroupVerified | None, str]:
    """What a message of VERIFIED says, and why it cannot be read if so.

    Then it is a failed group; None where not even its headers name one.
    """
    try:
        event = stored.event()
        if not isinstance(event, GroupVerified):
            raise Poison(f"{stored.subject}: holds {event.KIND}, expected group_verified")
    except Poison as error:
        return _failed(stored, str(error)), str(error)
    return event, ""


def _failed(stored: Stored, reason: str) -> GroupVerified | None:
    try:
        group = group_from_headers(stored.headers)
    except (KeyError, ValueError):
        return None
    return GroupVerified(
        writer_id=stored.headers.get(H_WRITER, "?"), at_us=stored.stored_at_us, group=group,
        status="failed", reason=f"undecodable: {reason}", request=None, generations=(), verdicts=(),
    )  # fmt: skip


async def arrival_of(bus: Bus, sequence: int, event: GroupVerified) -> Arrival:
    """A group as the machine takes it: with its request, by which cohorts are told."""
    if event.request is None:
        event = event.model_copy(update={"request": await _request(bus, event)})
    return Arrival(sequence, event)


async def _request(bus: Bus, event: GroupVerified) -> GroupRequested | None:
    # Requests are numbered as their log is.
    stored = await bus.get(Log.REQUESTS, event.group.request_seq)
    if stored is None or stored.headers.get(H_GROUP) != event.group.group_id:
        return None
    try:
        found = stored.event()
    except Poison:
        return None
    return found if isinstance(found, GroupRequested) else None


async def decisions_on_record(bus: Bus) -> tuple[Recorded, Mapping[str, Sequence[Annotation]]]:
    """Outcome and window of every group in ANNOTATED, and its annotations by group id."""
    headers: list[Stored] = []
    annotations: dict[str, Sequence[Annotation]] = {}
    async for stored in _all(bus, Log.ANNOTATED, kind_subjects(bus.run, GroupAnnotated.KIND)):
        headers.append(replace(stored, data=b""))
        try:
            event = decode(stored.data, unread=UNREAD)
        except Poison:
            continue  # no policy of this version wrote it
        if isinstance(event, GroupAnnotated):
            annotations[event.group.group_id] = event.annotations
    return recorded(headers, LedgerView()), annotations


async def train_groups(bus: Bus) -> AsyncIterator[Arrival]:
    """Every train group of VERIFIED, in log order, as the run's policy took it."""
    subject = kind_subjects(bus.run, GroupVerified.KIND, "train")
    async for stored in _all(bus, Log.VERIFIED, subject):
        event, _ = verified_of(stored)
        if event is not None:
            yield await arrival_of(bus, stored.sequence, event)


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
