"""A stage that cannot handle a message ends its group and lives on."""

import asyncio
import time
from collections.abc import Sequence

import pytest

from broker.errors import Poison, Replaced, Retry
from broker.memory import MemoryBus, MemoryServer
from broker.messages import Event, GroupRequested
from broker.packing import H_DEAD_REASON
from broker.serve import retry_delay_s, serve
from broker.telemetry import Health
from broker.topology import MAX_DELIVERIES, Log, headers
from tests.builders import a_generated, a_request
from tests.serving import QUICK, answer, fail, outputs, put_raw, serving, until_done


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer()


@pytest.fixture
async def bus(server: MemoryServer) -> MemoryBus:
    bus = MemoryBus(server, "run")
    await bus.consumer(QUICK)  # from here on the reader exists, and the state counts for it
    return bus


async def test_poison_fails_the_group_with_its_reason_and_leaves_a_dead_letter(bus: MemoryBus):
    await bus.publish(a_request())

    async def refuse(event: Event) -> Sequence[Event]:
        raise Poison("prompt of 9 tokens; the limit is 8")

    async with serving(bus, refuse):
        (failed,) = await outputs(bus, 1)
        await until_done(bus)

    dead = await bus.get(Log.DEAD, 1)
    assert (failed.status, failed.reason) == ("failed", "prompt of 9 tokens; the limit is 8")
    assert failed.request == a_request()
    assert dead is not None
    assert dead.headers[H_DEAD_REASON] == failed.reason
    assert dead.event() == a_request()


async def test_retry_hands_the_message_back_for_its_delay(bus: MemoryBus):
    await bus.publish(a_request())
    times: list[float] = []

    async def second_time(event: Event) -> Sequence[Event]:
        times.append(time.monotonic())
        if len(times) == 1:
            raise Retry("no weights yet", delay_s=0.4)
        return await answer(event)

    async with serving(bus, second_time):
        await outputs(bus, 1)

    assert len(times) == 2
    assert times[1] - times[0] > 0.35


async def test_retrying_for_ever_ends_as_a_failed_group(bus: MemoryBus):
    await bus.publish(a_request())
    calls = 0

    async def never(event: Event) -> Sequence[Event]:
        nonlocal calls
        calls += 1
        raise Retry("no weights yet", delay_s=0.01)

    async with serving(bus, never):
        (failed,) = await outputs(bus, 1)
        await until_done(bus)

    assert calls == MAX_DELIVERIES
    assert "no weights yet" in failed.reason


async def test_a_bug_is_retried_and_then_fails_the_group_while_the_stage_lives_on(
    bus: MemoryBus,
):
    await bus.publish(a_request("00000001-0-0"))
    calls = 0

    async def buggy(event: Event) -> Sequence[Event]:
        nonlocal calls
        assert isinstance(event, GroupRequested)
        if event.group.group_id == "00000001-0-0":
            calls += 1
            raise KeyError("boom")
        return await answer(event)

    async with serving(bus, buggy):
        await bus.publish(a_request("00000002-0-0"))
        found = {event.group.group_id: event for event in await outputs(bus, 2)}
        await until_done(bus)

    assert calls == MAX_DELIVERIES
    assert "KeyError" in found["00000001-0-0"].reason
    assert found["00000002-0-0"].status == "ok"


def test_the_delay_after_a_bug_grows_to_a_limit():
    delays = [retry_delay_s(deliveries) for deliveries in range(1, 12)]

    assert delays == sorted(delays)
    assert (delays[0], delays[-1]) == (1.0, 30.0)


async def test_a_message_that_kills_its_workers_fails_unhandled(bus: MemoryBus):
    await bus.publish(a_request())
    consumer = await bus.consumer(QUICK)
    for _ in range(MAX_DELIVERIES):
        (delivery,) = await consumer.fetch(1, 1.0)
        await delivery.retry(0)
    calls = 0

    async def count(event: Event) -> Sequence[Event]:
        nonlocal calls
        calls += 1
        return await answer(event)

    async with serving(bus, count):
        (failed,) = await outputs(bus, 1)

    assert calls == 0
    assert "delivered 6 times" in failed.reason


async def test_an_unreadable_message_fails_the_group_that_its_headers_name(
    bus: MemoryBus, server: MemoryServer
):
    put_raw(bus, server, b"\xc1 not a message", headers(a_request()))

    async with serving(bus, answer):
        (failed,) = await outputs(bus, 1)
        await until_done(bus)

    assert failed.group == a_request().group
    assert failed.request is None
    assert "not a msgpack envelope" in failed.reason


@pytest.mark.parametrize("found", [{}, headers(a_request()) | {"Sluice-Request-Seq": "x"}])
async def test_an_unreadable_message_of_no_group_is_kept_as_a_dead_letter_alone(
    bus: MemoryBus, server: MemoryServer, found: dict[str, str]
):
    put_raw(bus, server, b"\xc1", found)
    await bus.publish(a_request("00000002-0-0"))

    async with serving(bus, answer):
        (output,) = await outputs(bus, 1)
        await until_done(bus)

    assert output.group.group_id == "00000002-0-0"
    assert (await bus.state(Log.DEAD)).messages == 1


async def test_output_that_cannot_be_packed_fails_the_group(bus: MemoryBus):
    await bus.publish(a_request())

    async def unpackable(event: Event) -> Sequence[Event]:
        assert isinstance(event, GroupRequested)
        sample = event.sample.model_copy(update={"options": {"n": 2**64}})
        return [a_generated(event.model_copy(update={"sample": sample}))]

    async with serving(bus, unpackable):
        (failed,) = await outputs(bus, 1)

    assert failed.status == "failed"
    assert "cannot be packed" in failed.reason


async def test_being_replaced_ends_the_stage(bus: MemoryBus):
    await bus.publish(a_request())

    async def replaced(event: Event) -> Sequence[Event]:
        raise Replaced("another process is the writer")

    with pytest.raises(Replaced):
        async with asyncio.timeout(5):
            await serve(
                bus, QUICK, replaced, fail=fail, slots=1, health=Health("t"), stop=asyncio.Event()
            )
