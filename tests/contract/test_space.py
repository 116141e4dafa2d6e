"""Quotas and purging: publishers wait, nothing is dropped but what is purged."""

import asyncio

import numpy as np

from broker.arrays import token_array
from broker.bus import Bus
from broker.messages import LogPurged, RunDraining, ShadowDecided
from broker.telemetry import Health
from broker.topology import Log
from tests.builders import AT_US, WRITER, a_key, a_request
from tests.contract.conftest import Place
from tests.contract.logs import group_id, read_all


async def test_a_cursor_steps_over_purged_messages_only(bus: Bus):
    for n in range(1, 11):
        await bus.publish(a_request(group_id(n)))
    before = await bus.cursor(Log.REQUESTS, 0)
    assert (await before.read(1, 5.0))[0].sequence == 1

    purged = await bus.purge(Log.REQUESTS, 6)

    found = await read_all(bus, Log.REQUESTS, 4)
    assert purged == 6
    assert [s.sequence for s in found] == [7, 8, 9, 10]
    assert await bus.get(Log.REQUESTS, 6) is None


async def test_purging_can_keep_the_last_message_of_every_subject(bus: Bus):
    for n in (1, 2, 1, 3, 2, 2):
        await bus.publish(a_request(group_id(n)))

    purged = await bus.purge(Log.REQUESTS, 5, keep_last_per_subject=True)

    assert purged == 3
    assert [s.sequence for s in await read_all(bus, Log.REQUESTS, 3)] == [3, 4, 6]


async def test_of_shadow_decisions_a_purge_keeps_none(bus: Bus):
    events = [
        ShadowDecided(
            writer_id=WRITER, at_us=AT_US, group=a_key(group_id(n)), outcome="dropped",
            reason="filtered:x", annotations=(), window=1, verified_seq=n, policy="p",
            policy_version="1",
        )
        for n in (1, 2, 3)
    ]  # fmt: skip
    await bus.publish(LogPurged(writer_id=WRITER, at_us=AT_US, floor=0))
    await bus.publish_batch(events)
    await bus.publish(RunDraining(writer_id=WRITER, at_us=AT_US, reason="", open_groups=()))

    purged = await bus.purge(Log.LEDGER, 3, keep_last_per_subject=True)

    assert purged == 2
    assert [s.sequence for s in await read_all(bus, Log.LEDGER, 3)] == [1, 4, 5]


async def test_a_full_log_makes_the_publisher_wait_and_go_on_when_there_is_space(place: Place):
    health = Health("publisher")
    bus = await place.bus(log_bytes=1 << 20, health=health)
    ids = token_array(np.arange(25_000))
    for n in range(1, 11):
        await bus.publish(a_request(group_id(n), prompt_ids=ids), expect_subject=0)

    late = a_request(group_id(99), prompt_ids=token_array(np.arange(30_000)))
    waiting = asyncio.create_task(bus.publish(late, expect_subject=0))
    waits: list = []
    async with asyncio.timeout(10):
        while not waits:
            await asyncio.sleep(0.01)
            found: list = list(health.status()["waits"])  # type: ignore[call-overload]
            waits = [wait["for"] for wait in found if "space" in wait["for"]]
    state = await bus.state(Log.REQUESTS)
    await bus.purge(Log.REQUESTS, 5)

    async with asyncio.timeout(10):
        sequence = await waiting
    assert "REQUESTS" in waits[0]
    assert (state.first, state.last) == (1, 10)  # nothing was dropped to make room
    assert sequence == 11
    assert [s.sequence for s in await read_all(bus, Log.REQUESTS, 6)] == [6, 7, 8, 9, 10, 11]


async def test_a_batch_waits_for_space_as_a_whole(place: Place):
    bus = await place.bus(log_bytes=1 << 20)
    ids = token_array(np.arange(25_000))
    await bus.publish_batch([a_request(group_id(n), prompt_ids=ids) for n in range(1, 8)])

    late = [a_request(group_id(n), prompt_ids=ids) for n in range(8, 13)]
    waiting = asyncio.create_task(bus.publish_batch(late))
    await asyncio.sleep(0.3)
    before = await bus.state(Log.REQUESTS)
    await bus.purge(Log.REQUESTS, 7)

    async with asyncio.timeout(10):
        assert await waiting == 12
    assert before.last == 7
