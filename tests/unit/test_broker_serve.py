"""Every message a stage is given ends: by output, by a failed output, or in other hands."""

import asyncio
import time
from collections.abc import Sequence

import pytest

from broker.memory import MemoryBus, MemoryServer
from broker.messages import Event, GroupRequested
from broker.telemetry import Health
from tests.builders import a_generated, a_request
from tests.serving import QUICK, answer, outputs, pending, serving, until_done


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer()


@pytest.fixture
async def bus(server: MemoryServer) -> MemoryBus:
    bus = MemoryBus(server, "run")
    await bus.consumer(QUICK)  # from here on the reader exists, and the state counts for it
    return bus


async def test_every_message_is_answered_once_and_acknowledged(bus: MemoryBus):
    for n in range(20):
        await bus.publish(a_request(f"{n:08d}-0-0"))

    async with serving(bus, answer):
        found = await outputs(bus, 20)
        await until_done(bus)

    assert sorted(event.group.group_id for event in found) == [f"{n:08d}-0-0" for n in range(20)]


async def test_as_many_messages_as_slots_are_handled_at_once_and_no_more(bus: MemoryBus):
    for n in range(9):
        await bus.publish(a_request(f"{n:08d}-0-0"))
    working, most = 0, 0

    async def slow(event: Event) -> Sequence[Event]:
        nonlocal working, most
        working += 1
        most = max(most, working)
        await asyncio.sleep(0.05)
        working -= 1
        return await answer(event)

    async with serving(bus, slow, slots=3):
        await outputs(bus, 9)

    assert most == 3


async def test_one_slow_message_does_not_hold_the_others(bus: MemoryBus):
    for n in range(10):
        await bus.publish(a_request(f"{n:08d}-0-0"))

    async def first_is_slow(event: Event) -> Sequence[Event]:
        assert isinstance(event, GroupRequested)
        await asyncio.sleep(2.0 if event.group.group_id.startswith("00000000") else 0.0)
        return await answer(event)

    async with serving(bus, first_is_slow, slots=2):
        await outputs(bus, 9, within_s=1.5)


async def test_work_longer_than_the_ack_wait_stays_with_its_worker(bus: MemoryBus):
    await bus.publish(a_request())
    calls = 0

    async def slow(event: Event) -> Sequence[Event]:
        nonlocal calls
        calls += 1
        await asyncio.sleep(4 * QUICK.ack_wait_s)
        return await answer(event)

    async with serving(bus, slow):
        await outputs(bus, 1)

    assert calls == 1


async def test_output_that_is_stored_already_counts_as_done(bus: MemoryBus):
    await bus.publish(a_request())
    await bus.publish(a_generated(worker="somebody else"))

    async with serving(bus, answer):
        await until_done(bus)

    assert [event.worker for event in await outputs(bus, 1)] == ["somebody else"]


async def test_stopping_lets_short_work_finish_and_publish(bus: MemoryBus):
    await bus.publish(a_request())
    started = asyncio.Event()

    async def short(event: Event) -> Sequence[Event]:
        started.set()
        await asyncio.sleep(0.5)
        return await answer(event)

    async with serving(bus, short) as stop:
        await started.wait()
        stop.set()

    assert len(await outputs(bus, 1)) == 1
    assert await pending(bus) == 0


async def test_stopping_hands_long_work_back_at_once_and_leaves_in_time(bus: MemoryBus):
    await bus.publish(a_request())
    started = asyncio.Event()

    async def long(event: Event) -> Sequence[Event]:
        started.set()
        await asyncio.sleep(60)
        return await answer(event)

    began = time.monotonic()
    async with serving(bus, long) as stop:
        await started.wait()
        stop.set()

    assert time.monotonic() - began < 8
    (delivery,) = await (await bus.consumer(QUICK)).fetch(1, 0.05)
    assert delivery.deliveries == 2


async def test_waiting_for_messages_shows_in_the_status_and_keeps_the_heart_beating(
    bus: MemoryBus,
):
    health = Health("quick")

    async with serving(bus, answer, health=health):
        await asyncio.sleep(1.2)
        status = health.status()

    assert status["heartbeat_age_s"] < 1.0  # type: ignore[operator]
    assert "messages for quick" in str(status["waits"])
