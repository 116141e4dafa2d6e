"""Answers that get lost, before or after the server acted, lose nothing and double nothing."""

import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager

import pytest

from broker import jetstream
from broker.errors import Conflict
from broker.jetbus import JetStreamBus
from broker.jetstream import Connection
from broker.settings import NatsSettings
from broker.streams import object_stream
from broker.topology import H_GROUP, Log
from broker.wire import Message, Subscription, Unanswered, api
from tests.builders import a_request
from tests.contract.logs import a_large_request, group_id, read_all


class LossyWire:
    """A connection that loses questions to logs and objects, or the answers to them."""

    def __init__(self, inner: Connection, rng: random.Random, *, loss: float) -> None:
        self._inner = inner
        self._rng = rng
        self._loss = loss
        self.lost = 0

    @property
    def max_payload(self) -> int:
        return self._inner.max_payload

    async def request(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None, timeout_s: float
    ) -> Message:
        if self._rng.random() < self._loss:
            self.lost += 1
            raise Unanswered("lost before it arrived")
        reply = await self._inner.request(subject, data, headers, timeout_s)
        if self._rng.random() < self._loss:
            self.lost += 1
            raise Unanswered("answer lost")
        return reply

    async def send(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None = None, reply: str = ""
    ) -> None:
        await self._inner.send(subject, data, headers, reply)

    async def subscribe(
        self, subject: str, on_message: Callable[[Message], Awaitable[None]]
    ) -> Subscription:
        return await self._inner.subscribe(subject, on_message)

    def new_inbox(self) -> str:
        return self._inner.new_inbox()

    def waiting_for(self, what: str) -> AbstractContextManager[None]:
        return self._inner.waiting_for(what)

    async def close(self) -> None:
        await self._inner.close()


@pytest.fixture(params=[0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 6))])
async def lossy(
    request: pytest.FixtureRequest, nats_url: str
) -> AsyncIterator[tuple[JetStreamBus, LossyWire]]:
    """A bus that loses a quarter of all questions and a quarter of all answers."""
    settings = NatsSettings(url=nats_url, log_bytes=1 << 20)
    run = f"t{uuid.uuid4().hex[:12]}"
    sound = await jetstream.connect(settings, run)
    await sound.ensure_logs(settings)
    connection = Connection(settings, None)
    await connection.open()
    wire = LossyWire(connection, random.Random(request.param), loss=0.25)
    bus = JetStreamBus(wire, run, settings)
    yield bus, wire
    await sound.delete_run()
    await sound.close()
    await bus.close()


async def groups(bus: JetStreamBus, count: int) -> list[str]:
    assert (await bus.state(Log.REQUESTS)).messages == count
    return [stored.headers[H_GROUP] for stored in await read_all(bus, Log.REQUESTS, count)]


async def test_compare_and_set_publications_are_stored_once_and_in_order(
    lossy: tuple[JetStreamBus, LossyWire],
):
    bus, wire = lossy

    for n in range(40):
        assert await bus.publish(a_request(group_id(n)), expect_subject=0, expect_log=n) == n + 1

    assert await groups(bus, 40) == [group_id(n) for n in range(40)]
    assert wire.lost > 10


async def test_publications_without_expectation_are_stored_once(
    lossy: tuple[JetStreamBus, LossyWire],
):
    bus, _ = lossy

    for n in range(40):
        await bus.publish(a_request(group_id(n % 3)))

    assert await groups(bus, 40) == [group_id(n % 3) for n in range(40)]


async def test_batches_are_stored_once_and_whole(lossy: tuple[JetStreamBus, LossyWire]):
    bus, _ = lossy

    for first in range(0, 60, 6):
        batch = [a_request(group_id(n)) for n in range(first, first + 6)]
        assert await bus.publish_batch(batch, expect_log=first) == first + 6

    assert await groups(bus, 60) == [group_id(n) for n in range(60)]


async def test_a_batch_whose_beginning_a_full_server_stored_is_stored_to_its_end(
    lossy: tuple[JetStreamBus, LossyWire],
):
    bus, _ = lossy
    batch = [a_request(group_id(n)) for n in range(6)]
    for event in batch[:2]:
        await bus.publish(event, expect_subject=0)

    assert await bus.publish_batch(batch, expect_log=0) == 6

    assert await groups(bus, 6) == [group_id(n) for n in range(6)]


async def test_a_rival_behind_the_beginning_of_a_batch_is_a_conflict(
    lossy: tuple[JetStreamBus, LossyWire],
):
    bus, _ = lossy
    batch = [a_request(group_id(n)) for n in range(6)]
    await bus.publish(batch[0], expect_subject=0)
    await bus.publish(a_request(group_id(9), writer_id="rival"), expect_subject=0)

    with pytest.raises(Conflict):
        await bus.publish_batch(batch, expect_log=0)

    assert await groups(bus, 2) == [group_id(0), group_id(9)]


async def test_a_rival_is_still_a_conflict(lossy: tuple[JetStreamBus, LossyWire]):
    bus, _ = lossy
    for n in range(15):
        await bus.publish(a_request(group_id(n), writer_id="first"), expect_subject=0)

    for n in range(15):
        with pytest.raises(Conflict):
            await bus.publish(a_request(group_id(n), writer_id="second"), expect_subject=0)
        with pytest.raises(Conflict):
            await bus.publish_batch([a_request(group_id(n), writer_id="second")])

    assert len(await groups(bus, 15)) == 15


async def test_large_messages_are_whole_and_leave_nothing_behind(
    lossy: tuple[JetStreamBus, LossyWire],
):
    bus, wire = lossy
    events = [a_large_request(n) for n in range(6)]

    for n, event in enumerate(events):
        await bus.publish(event, expect_log=n)

    assert [s.event() for s in await read_all(bus, Log.REQUESTS, 6)] == events
    assert len(await bus.list_objects("groups/")) == 6
    await bus.purge(Log.REQUESTS, 6)
    assert await bus.list_objects("") == []
    bucket = await api(wire, f"STREAM.INFO.{object_stream(bus.run)}")
    assert bucket["state"]["messages"] == 0  # no chunk either
