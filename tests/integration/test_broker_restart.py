"""A NATS server that is killed and comes back on its directory costs time, and nothing else."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker import jetstream
from broker.bus import Bus
from broker.embedded import EmbeddedNats
from broker.jetbus import JetStreamBus
from broker.settings import NatsSettings
from broker.topology import H_GROUP, READERS, Log, Reader
from tests.builders import a_generated, a_request
from tests.integration.conftest import Start

QUICK = Reader("quick", Log.GENERATED, ("train",), ack_wait_s=2)
"""Redelivers what died with a connection soon enough for a test."""
MESSAGES = 3000
BATCH = 50


@pytest.fixture
def server(start: Start, tmp_path: Path) -> EmbeddedNats:
    return start(tmp_path / "nats")


@pytest.fixture
async def buses(server: EmbeddedNats) -> AsyncIterator[tuple[JetStreamBus, JetStreamBus]]:
    settings = NatsSettings(url=server.url)
    writer, reader = [await jetstream.connect(settings, "run") for _ in range(2)]
    await writer.ensure_logs(settings, (*READERS, QUICK))
    yield writer, reader
    await writer.close()
    await reader.close()


async def kill_and_restart(server: EmbeddedNats, *, away_s: float) -> None:
    os.kill(server.pid, signal.SIGKILL)
    await asyncio.sleep(away_s)
    await asyncio.to_thread(server.restart)


async def publish_all(bus: Bus) -> None:
    """Singles, compare-and-set on the log, and batches: what roles do."""
    for first in range(0, MESSAGES, BATCH):
        ids = [f"{n:08d}-0-0" for n in range(first, first + BATCH)]
        events = [a_generated(a_request(group_id)) for group_id in ids]
        if first % (2 * BATCH):
            await bus.publish_batch(events, expect_log=first)
        else:
            for number, event in enumerate(events):
                await bus.publish(event, expect_subject=0, expect_log=first + number)


async def read_all(bus: Bus) -> list[str]:
    cursor = await bus.cursor(Log.GENERATED, 0, headers_only=True)
    found: list[str] = []
    while len(found) < MESSAGES:
        found += [stored.headers[H_GROUP] for stored in await cursor.read(100, 1.0)]
    found += [stored.headers[H_GROUP] for stored in await cursor.read(100, 1.0)]
    await cursor.close()
    return found


async def verify_all(bus: Bus) -> Counter[str]:
    consumer = await bus.consumer(QUICK)
    handled: Counter[str] = Counter()
    while len(handled) < MESSAGES:
        for delivery in await consumer.fetch(64, 1.0):
            handled[delivery.stored.headers[H_GROUP]] += 1
            await delivery.ack()
    await consumer.close()
    return handled


async def test_nothing_is_lost_or_double_when_the_server_is_killed_twice(
    server: EmbeddedNats, buses: tuple[JetStreamBus, JetStreamBus]
):
    writer, reader = buses
    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        publishing = group.create_task(publish_all(writer))
        reading = group.create_task(read_all(reader))
        handling = group.create_task(verify_all(reader))
        for away_s in (0.1, 2.0):
            await asyncio.sleep(0.7)
            assert not publishing.done(), "the kill came too late to prove anything"
            await kill_and_restart(server, away_s=away_s)

    expected = [f"{n:08d}-0-0" for n in range(MESSAGES)]
    assert reading.result() == expected
    assert sorted(handling.result()) == expected
    assert (await writer.state(Log.GENERATED)).last == MESSAGES


async def test_a_reader_sees_what_comes_after_a_restart_within_seconds(
    server: EmbeddedNats, buses: tuple[JetStreamBus, JetStreamBus]
):
    writer, reader = buses
    cursor = await reader.cursor(Log.GENERATED, 0)
    consumer = await reader.consumer(QUICK)
    assert await cursor.read(1, 0.2) == []
    await kill_and_restart(server, away_s=0.5)

    await writer.publish(a_generated(), expect_subject=0)

    async with asyncio.timeout(6):
        while not await cursor.read(1, 0.5):
            pass
        while not await consumer.fetch(1, 0.5):
            pass


async def test_questions_asked_while_the_server_is_away_are_answered_when_it_is_back(
    server: EmbeddedNats, buses: tuple[JetStreamBus, JetStreamBus]
):
    writer, _ = buses
    await writer.publish(a_generated())
    await writer.put_object("x", b"1" * 2_000_000)
    os.kill(server.pid, signal.SIGKILL)

    asking = asyncio.gather(
        writer.state(Log.GENERATED),
        writer.get(Log.GENERATED, 1),
        writer.last(Log.GENERATED, ">"),
        writer.get_object("x", wait_s=30),
        writer.purge(Log.REQUESTS, 1),
    )
    await asyncio.sleep(1)
    assert not asking.done()
    await asyncio.to_thread(server.restart)

    async with asyncio.timeout(30):
        state, stored, last, data, _ = await asking
    assert state.last == 1
    assert stored is not None
    assert stored.event() == a_generated()
    assert last == stored
    assert data == b"1" * 2_000_000


async def test_reads_return_in_time_while_the_server_is_away(
    server: EmbeddedNats, buses: tuple[JetStreamBus, JetStreamBus]
):
    _, reader = buses
    cursor = await reader.cursor(Log.GENERATED, 0)
    consumer = await reader.consumer(QUICK)
    os.kill(server.pid, signal.SIGKILL)
    await asyncio.sleep(0.2)

    async with asyncio.timeout(6):
        assert await cursor.read(1, 0.5) == []
        assert await consumer.fetch(1, 0.5) == []
    await asyncio.to_thread(server.restart)


async def test_weights_put_while_the_server_dies_are_whole(
    server: EmbeddedNats, buses: tuple[JetStreamBus, JetStreamBus]
):
    writer, reader = buses
    data = os.urandom(40_000_000)
    putting = asyncio.create_task(writer.put_object("w", data))
    await asyncio.sleep(0.05)
    assert not putting.done()
    await kill_and_restart(server, away_s=0.3)

    async with asyncio.timeout(60):
        await putting
    assert await reader.get_object("w", wait_s=30) == data
