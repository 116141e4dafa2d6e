"""Every message a stage is given ends: by output, by a failed output, or in other hands."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from broker.errors import Poison, Replaced, Retry
from broker.memory import MemoryBus, MemoryServer
from broker.messages import Event, GroupGenerated, GroupKey, GroupRequested
from broker.packing import H_DEAD_REASON, Packed
from broker.serve import retry_delay_s, serve
from broker.telemetry import Health
from broker.topology import MAX_DELIVERIES, Log, Reader, headers, subject
from tests.builders import AT_US, WRITER, a_generated, a_request

QUICK = Reader("quick", Log.REQUESTS, ("train",), ack_wait_s=0.3)


def fail(group: GroupKey, event: Event | None, reason: str) -> Event:
    request = event if isinstance(event, GroupRequested) else None
    return GroupGenerated(
        writer_id=WRITER,
        at_us=AT_US,
        group=group,
        status="failed",
        reason=reason,
        request=request,
        generations=(),
    )


async def answer(event: Event) -> Sequence[Event]:
    assert isinstance(event, GroupRequested)
    return [a_generated(event)]


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer()


@pytest.fixture
async def bus(server: MemoryServer) -> MemoryBus:
    bus = MemoryBus(server, "run")
    await bus.consumer(QUICK)  # from here on the reader exists, and the state counts for it
    return bus


@asynccontextmanager
async def serving(
    bus: MemoryBus, handler: Callable, *, slots: int = 4, health: Health | None = None
) -> AsyncIterator[asyncio.Event]:
    """A stage at work; stopped at the end, and within its limit."""
    stop = asyncio.Event()
    stage = asyncio.create_task(
        serve(
            bus,
            QUICK,
            handler,
            fail=fail,
            slots=slots,
            health=health or Health("t"),
            stop=stop,
            delay_s=lambda deliveries: 0.01,
        )
    )
    try:
        yield stop
    finally:
        stop.set()
        async with asyncio.timeout(8):
            await stage


async def outputs(bus: MemoryBus, count: int, within_s: float = 10) -> list[GroupGenerated]:
    """The stage's output, once there are `count`."""
    cursor = await bus.cursor(Log.GENERATED, 0)
    found: list[GroupGenerated] = []
    async with asyncio.timeout(within_s):
        while len(found) < count:
            events = [stored.event() for stored in await cursor.read(100, 1.0)]
            found += [event for event in events if isinstance(event, GroupGenerated)]
    return found


async def pending(bus: MemoryBus) -> int:
    return (await bus.state(Log.REQUESTS)).pending["quick"]


async def until_done(bus: MemoryBus, within_s: float = 10) -> None:
    async with asyncio.timeout(within_s):
        while await pending(bus):  # noqa: ASYNC110 - the log has no event to wait for
            await asyncio.sleep(0.01)


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


def put_raw(bus: MemoryBus, server: MemoryServer, data: bytes, found: dict[str, str]) -> None:
    """What no publisher of ours would send."""
    packed = Packed(Log.REQUESTS, subject("run", a_request()), found, data)
    server.run("run").logs[Log.REQUESTS].append(packed)
    server.run("run").bell.ring()


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
