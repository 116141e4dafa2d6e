"""Publishing that ends only when the message is stored or refused.

The same bytes are sent until the server answers: a compare-and-set refuses the second copy, and the
refusal counts as success when the stored bytes are ours. Publications without expectation carry a
message id, which the server stores once. A full log makes the publisher wait, for ever but visibly.
"""

import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from broker.answers import ACK_TIMEOUT_S, Answer, parse_answer, send_one, until_answered
from broker.bus import Stored
from broker.errors import Conflict
from broker.messages import Event
from broker.objects import Objects
from broker.packing import Packed, beginning, check_batch, pack, without_body
from broker.telemetry import events_total
from broker.topology import Log, stream_name
from broker.wire import Unanswered, Wire, read_message

EXPECT_SUBJECT = "Nats-Expected-Last-Subject-Sequence"
EXPECT_LOG = "Nats-Expected-Last-Sequence"

UNCONFIRMED_BATCH_BYTES = 4 * 1024 * 1024
"""A batch is confirmed piecewise, so that neither side buffers all of it."""


def _with(packed: Packed, more: Mapping[str, str]) -> Packed:
    return replace(packed, headers={**packed.headers, **more})


class Publisher:
    """Publishes for one run; knows no event kinds but by their packed form."""

    def __init__(self, wire: Wire, run: str, objects: Objects, *, limit_bytes: int) -> None:
        self._wire = wire
        self._run = run
        self._objects = objects
        self.limit_bytes = limit_bytes
        """Packed messages above this size, headers included, leave their body in the object store."""

    async def publish(
        self, event: Event, *, expect_subject: int | None, expect_log: int | None
    ) -> int:
        sequence = await self.store(
            pack(self._run, event), expect_subject=expect_subject, expect_log=expect_log
        )
        events_total.labels(event.KIND).inc()
        return sequence

    async def store(
        self, packed: Packed, *, expect_subject: int | None, expect_log: int | None
    ) -> int:
        packed = await self._stow(packed)
        expected: dict[str, str] = {}
        if expect_subject is not None:
            expected[EXPECT_SUBJECT] = str(expect_subject)
        if expect_log is not None:
            expected[EXPECT_LOG] = str(expect_log)
        sent = _with(packed, expected or {"Nats-Msg-Id": uuid.uuid4().hex})
        answer = await self._until_answered(
            packed.log, lambda: send_one(self._wire, sent.subject, sent.data, sent.headers)
        )
        if answer.stored:
            return answer.sequence
        stored = await self._last(packed)
        if stored is not None and packed.is_stored_as(stored):
            return stored.sequence
        await self._discard([packed])
        raise Conflict(packed.subject, (expect_subject if expect_log is None else expect_log) or 0)

    async def publish_batch(self, events: Sequence[Event], *, expect_log: int | None) -> int:
        batch = [pack(self._run, event) for event in events]
        check_batch(batch)
        batch = [await self._stow(packed) for packed in batch]
        sequence = await self._store_batch(batch, expect_log)
        for event in events:
            events_total.labels(event.KIND).inc()
        return sequence

    async def _store_batch(self, batch: list[Packed], expect_log: int | None) -> int:
        sent = [_with(packed, {EXPECT_SUBJECT: "0"}) for packed in batch]
        if expect_log is not None:
            sent[0] = _with(sent[0], {EXPECT_LOG: str(expect_log)})
        answer = await self._until_answered(batch[0].log, lambda: self._send_all(sent))
        if answer.stored:
            return answer.sequence
        stored = [await self._last(packed) for packed in batch]
        ours = [
            s for s, p in zip(stored, batch, strict=True) if s is not None and p.is_stored_as(s)
        ]
        if len(ours) == len(batch):
            return max(one.sequence for one in ours)
        begun = beginning(batch, stored)
        if begun > 0:
            # From where it broke off: another writer may have come in between, and is a conflict as ever.
            after = None if expect_log is None else ours[-1].sequence
            return await self._store_batch(batch[begun:], after)
        # What an earlier publication stored with our bytes keeps its object.
        pairs = list(zip(batch, stored, strict=True))
        await self._discard([p for p, s in pairs if s is None or not p.is_stored_as(s)])
        taken = next((p for p, s in pairs if s is not None), batch[0])
        raise Conflict(taken.subject, expect_log or 0)

    async def _until_answered(self, log: Log, send: Callable[[], Awaitable[Answer]]) -> Answer:
        return await until_answered(self._wire, stream_name(self._run, log), str(log), send)

    async def _send_all(self, batch: list[Packed]) -> Answer:
        """One atomic batch (ADR-50): nothing is stored before the last message's commit."""
        batch_id, unconfirmed = uuid.uuid4().hex, 0
        for number, packed in enumerate(batch, start=1):
            found = {
                **packed.headers,
                "Nats-Batch-Id": batch_id,
                "Nats-Batch-Sequence": str(number),
            }
            unconfirmed += packed.size
            if number == len(batch):
                found["Nats-Batch-Commit"] = "1"
            elif number > 1 and unconfirmed < UNCONFIRMED_BATCH_BYTES:
                await self._wire.send(packed.subject, packed.data, found)
                continue
            reply = await self._wire.request(packed.subject, packed.data, found, ACK_TIMEOUT_S)
            unconfirmed = 0
            if reply.data:
                return parse_answer(reply.data)
        raise Unanswered("batch: empty answer to its commit")

    async def _last(self, packed: Packed) -> Stored | None:
        stream = stream_name(self._run, packed.log)
        return await read_message(self._wire, packed.log, stream, {"last_by_subj": packed.subject})

    async def _stow(self, packed: Packed) -> Packed:
        """With a claim check in place of a body that is too large."""
        if packed.size <= self.limit_bytes:
            return packed
        checked = without_body(packed)
        assert checked.object_name is not None  # without_body names one
        if not await self._objects.exists(checked.object_name):
            await self._objects.put(checked.object_name, packed.data)
        return checked

    async def _discard(self, refused: Sequence[Packed]) -> None:
        for packed in refused:
            if packed.object_name is not None:
                await self._objects.delete(packed.object_name)
