"""A stage at work on a memory bus, for tests of `serve`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from broker.memory import MemoryBus, MemoryServer
from broker.messages import Event, GroupGenerated, GroupKey, GroupRequested
from broker.packing import Packed
from broker.serve import serve
from broker.telemetry import Health
from broker.topology import Log, Reader, subject
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


def put_raw(bus: MemoryBus, server: MemoryServer, data: bytes, found: dict[str, str]) -> None:
    """What no publisher of ours would send."""
    packed = Packed(Log.REQUESTS, subject("run", a_request()), found, data)
    server.run("run").logs[Log.REQUESTS].append(packed)
    server.run("run").bell.ring()
