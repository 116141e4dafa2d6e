"""A pull of a durable reader stays open for what trickles in, and leaves nothing behind when it is closed."""

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping

import pytest

from broker import jetstream
from broker.consumer import PULL_EXPIRES_S, JetConsumer
from broker.jetbus import JetStreamBus
from broker.jetstream import Connection
from broker.settings import NatsSettings
from broker.topology import ROLLOUT_TRAIN, Log, stream_name
from tests.builders import a_request
from tests.contract.logs import group_id
from tests.contract.test_readers import fetch_all


class Counting(Connection):
    """A connection that counts the pulls sent over it, and can lose one."""

    pulls = 0
    lose = 0

    async def send(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None = None, reply: str = ""
    ) -> None:
        if ".MSG.NEXT." in subject:
            self.pulls += 1
            if self.pulls <= self.lose:
                return
        await super().send(subject, data, headers, reply)


@pytest.fixture
async def wire(nats_url: str) -> AsyncIterator[Counting]:
    connection = Counting(NatsSettings(url=nats_url), None)
    await connection.open()
    yield connection
    await connection.close()


def reader(wire: Connection, run: str) -> JetConsumer:
    async def resolve(stored: object) -> object:
        return stored

    stream = stream_name(run, ROLLOUT_TRAIN.log)
    return JetConsumer(wire, Log.REQUESTS, stream, ROLLOUT_TRAIN.name, resolve)  # type: ignore[arg-type]


async def test_messages_that_trickle_in_come_by_one_pull(bus: JetStreamBus, wire: Counting):
    consumer = reader(wire, bus.run)

    for n in range(8):
        waiting = asyncio.create_task(consumer.fetch(8 - n, 5.0))
        await asyncio.sleep(0.02)
        await bus.publish(a_request(group_id(n)))
        (delivery,) = await waiting
        await delivery.ack()

    assert wire.pulls == 1


async def test_no_more_is_sent_than_the_reader_asked_for(bus: JetStreamBus, wire: Counting):
    consumer = reader(wire, bus.run)
    assert await consumer.fetch(3, 0.1) == []
    for n in range(9):
        await bus.publish(a_request(group_id(n)))

    mine = await fetch_all(consumer, 3)
    others = await fetch_all(await bus.consumer(ROLLOUT_TRAIN), 6, within_s=3.0)

    assert len(mine) + len(others) == 9
    await consumer.close()


async def test_a_pull_that_was_lost_is_sent_again(bus: JetStreamBus, wire: Counting):
    wire.lose = 1
    consumer = reader(wire, bus.run)
    await bus.publish(a_request(group_id(1)))

    assert len(await fetch_all(consumer, 1, within_s=PULL_EXPIRES_S + 2.0)) == 1


async def test_what_was_sent_to_a_reader_that_leaves_goes_to_another_at_once(
    bus: JetStreamBus, wire: Counting, nats_url: str
):
    leaving, staying = reader(wire, bus.run), await bus.consumer(ROLLOUT_TRAIN)
    assert await leaving.fetch(64, 0.1) == []
    # This thread reads nothing meanwhile: the messages lie in its socket.
    elsewhere = threading.Thread(target=asyncio.run, args=(publish(nats_url, bus.run, 64),))
    elsewhere.start()
    elsewhere.join()

    await leaving.close()

    # Not after the ack wait of 30 s.
    assert len(await fetch_all(staying, 64, within_s=5.0)) == 64


async def publish(url: str, run: str, count: int) -> None:
    other = await jetstream.connect(NatsSettings(url=url), run)
    await other.publish_batch([a_request(group_id(n)) for n in range(count)])
    # Its answer comes after the server has sent them all.
    await other.state(Log.REQUESTS)
    await other.close()
