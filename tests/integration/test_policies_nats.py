"""The policy role over a real NATS server: the same decisions as over the memory bus, and fenced."""

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest

from broker import jetstream
from broker.errors import Replaced
from broker.jetbus import JetStreamBus
from broker.memory import MemoryBus, MemoryServer
from broker.settings import NatsSettings
from tests.policy_builders import a_group_event
from tests.policy_run import (
    MIXED,
    annotated,
    decided,
    fill,
    outcome,
    poll,
    started,
    work,
    work_until,
)


@pytest.fixture
async def buses(nats_url: str) -> AsyncIterator[tuple[JetStreamBus, JetStreamBus]]:
    """Two connections to one new run."""
    settings = NatsSettings(url=nats_url, log_bytes=16 << 20)
    run = f"t{uuid.uuid4().hex[:12]}"
    first = await jetstream.connect(settings, run)
    second = await jetstream.connect(settings, run)
    await first.ensure_logs(settings)
    yield first, second
    await second.close()
    await first.delete_run()
    await first.close()


async def test_decisions_over_nats_are_those_over_the_memory_bus(
    buses: tuple[JetStreamBus, JetStreamBus],
):
    bus, other = buses
    memory = MemoryBus(MemoryServer(), "r")
    await fill(bus)
    await fill(memory)

    await work_until(other, decided(5, bus))
    await work_until(other, decided(9, bus))
    await work_until(memory, decided(9, memory))

    assert await outcome(bus) == await outcome(memory)


async def test_of_two_workers_on_nats_one_is_replaced_and_nothing_is_decided_twice(
    buses: tuple[JetStreamBus, JetStreamBus],
):
    bus, other = buses
    stop = asyncio.Event()
    first = asyncio.create_task(work(bus, stop))
    async with asyncio.timeout(10):
        await poll(lambda: started(bus))
    second = asyncio.create_task(work(other, stop))
    await asyncio.sleep(0.5)  # both follow the log now

    for number in range(1, 7):
        await bus.publish(a_group_event(number, MIXED))
    async with asyncio.timeout(20):
        await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
        await poll(decided(6, bus))
    stop.set()

    results = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(r) for r in results if r is not None] == [Replaced]
    assert [e.group.request_seq for e in await annotated(bus)] == [1, 2, 3, 4, 5, 6]
