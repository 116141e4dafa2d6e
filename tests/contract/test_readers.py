"""Durable readers: each message to one worker, again until it is acknowledged."""

import asyncio
import time

import pytest

from broker.bus import Bus, Consumer, Delivery
from broker.topology import ROLLOUT_EVAL, ROLLOUT_TRAIN, VERIFIER, Log, Reader
from tests.builders import a_generated, a_key, a_request
from tests.contract.conftest import Place
from tests.contract.logs import a_large_request, group_id

QUICK = Reader("quick", Log.REQUESTS, ("train", "eval"), ack_wait_s=0.6)
"""Redelivers soon enough for a test."""


async def publish_requests(bus: Bus, *numbers: int) -> None:
    for n in numbers:
        await bus.publish(a_request(group_id(n)))


async def fetch_all(consumer: Consumer, count: int, within_s: float = 5.0) -> list[Delivery]:
    found: list[Delivery] = []
    async with asyncio.timeout(within_s):
        while len(found) < count:
            found += await consumer.fetch(count - len(found), 1.0)
    return found


@pytest.fixture
async def quick_bus(place: Place) -> Bus:
    return await place.bus(readers=(QUICK,))


async def test_messages_published_before_the_reader_came_are_delivered(bus: Bus):
    await publish_requests(bus, 1, 2, 3)

    found = await fetch_all(await bus.consumer(ROLLOUT_TRAIN), 3)

    assert [d.stored.sequence for d in found] == [1, 2, 3]
    assert [d.deliveries for d in found] == [1, 1, 1]
    assert found[0].stored.event() == a_request(group_id(1))


async def test_a_reader_gets_only_its_purposes(bus: Bus):
    for n, purpose in enumerate(("train", "eval", "probe", "train"), start=1):
        await bus.publish(a_request(group=a_key(group_id(n), purpose=purpose)))

    train = await fetch_all(await bus.consumer(ROLLOUT_TRAIN), 2)
    others = await fetch_all(await bus.consumer(ROLLOUT_EVAL), 2)

    assert [d.stored.sequence for d in train] == [1, 4]
    assert [d.stored.sequence for d in others] == [2, 3]


async def test_two_processes_of_a_role_share_the_messages(place: Place):
    first, second = await place.bus(), await place.bus()
    await publish_requests(first, *range(1, 11))

    some = await fetch_all(await first.consumer(ROLLOUT_TRAIN), 5)
    rest = await fetch_all(await second.consumer(ROLLOUT_TRAIN), 5)

    assert sorted(d.stored.sequence for d in some + rest) == list(range(1, 11))


async def test_fetch_returns_as_soon_as_there_is_one_message(bus: Bus):
    consumer = await bus.consumer(ROLLOUT_TRAIN)
    waiting = asyncio.create_task(consumer.fetch(64, 20.0))
    await asyncio.sleep(0.1)

    await publish_requests(bus, 1)

    async with asyncio.timeout(3):
        assert len(await waiting) == 1


async def test_fetch_returns_empty_when_its_time_is_over(bus: Bus):
    consumer = await bus.consumer(ROLLOUT_TRAIN)
    started = time.monotonic()

    assert await consumer.fetch(8, 0.3) == []

    assert 0.2 < time.monotonic() - started < 2


async def test_a_message_that_arrives_for_a_cancelled_fetch_is_not_lost(bus: Bus):
    consumer = await bus.consumer(ROLLOUT_TRAIN)
    fetching = asyncio.create_task(consumer.fetch(1, 20.0))
    await asyncio.sleep(0.1)
    fetching.cancel()
    await asyncio.gather(fetching, return_exceptions=True)

    await publish_requests(bus, 1)

    assert len(await fetch_all(consumer, 1)) == 1


async def test_an_unacknowledged_message_is_delivered_again(quick_bus: Bus):
    consumer = await quick_bus.consumer(QUICK)
    await publish_requests(quick_bus, 1)
    await fetch_all(consumer, 1)

    (again,) = await fetch_all(consumer, 1)

    assert again.deliveries == 2


async def test_an_acknowledged_message_is_not_delivered_again(quick_bus: Bus):
    consumer = await quick_bus.consumer(QUICK)
    await publish_requests(quick_bus, 1)
    (delivery,) = await fetch_all(consumer, 1)

    await delivery.ack()

    assert await consumer.fetch(1, 1.2) == []


async def test_acknowledging_late_or_twice_does_no_harm(quick_bus: Bus):
    consumer = await quick_bus.consumer(QUICK)
    await publish_requests(quick_bus, 1)
    (first,) = await fetch_all(consumer, 1)
    (second,) = await fetch_all(consumer, 1)

    await first.ack()
    await second.ack()
    await second.ack()

    assert await consumer.fetch(1, 1.2) == []


async def test_progress_keeps_a_message_with_its_worker(quick_bus: Bus):
    consumer = await quick_bus.consumer(QUICK)
    await publish_requests(quick_bus, 1)
    (delivery,) = await fetch_all(consumer, 1)

    for _ in range(6):
        await asyncio.sleep(0.2)
        await delivery.progress()
        assert await consumer.fetch(1, 0.02) == []
    await delivery.ack()

    assert await consumer.fetch(1, 1.0) == []


async def test_retry_delivers_again_after_the_delay_and_not_before(bus: Bus):
    consumer = await bus.consumer(ROLLOUT_TRAIN)
    await publish_requests(bus, 1)
    (delivery,) = await fetch_all(consumer, 1)

    await delivery.retry(0.6)

    assert await consumer.fetch(1, 0.2) == []
    (again,) = await fetch_all(consumer, 1)
    assert again.deliveries == 2


async def test_handing_back_without_delay_delivers_at_once(bus: Bus):
    consumer = await bus.consumer(ROLLOUT_TRAIN)
    await publish_requests(bus, 1)
    (delivery,) = await fetch_all(consumer, 1)

    await delivery.retry(0.0)

    assert len(await fetch_all(consumer, 1, within_s=2.0)) == 1


async def test_pending_counts_what_is_not_acknowledged(bus: Bus):
    for n in range(1, 6):
        await bus.publish(a_generated(a_request(group_id(n))))
    found = await fetch_all(await bus.consumer(VERIFIER), 2)

    held = (await bus.state(Log.GENERATED)).pending
    await found[0].ack()
    await asyncio.sleep(0.1)
    after = (await bus.state(Log.GENERATED)).pending

    assert held == {"verifier": 5}
    assert after == {"verifier": 4}


async def test_more_than_a_thousand_messages_may_be_held_at_once(bus: Bus):
    await bus.publish_batch([a_request(group_id(n)) for n in range(1, 1001)])
    await bus.publish_batch([a_request(group_id(n)) for n in range(1001, 1501)])

    found = await fetch_all(await bus.consumer(ROLLOUT_TRAIN), 1500, within_s=20)

    assert len({d.stored.sequence for d in found}) == 1500


async def test_a_large_message_is_delivered_whole(place: Place):
    bus = await place.bus(log_bytes=1 << 20)
    await bus.publish(a_large_request())

    (delivery,) = await fetch_all(await bus.consumer(ROLLOUT_TRAIN), 1)

    assert delivery.stored.event() == a_large_request()
