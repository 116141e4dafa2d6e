"""Running a recorder in a test, to the end of its run or until something is so."""

import asyncio
from collections.abc import Callable

from broker.bus import Bus
from broker.memory import MemoryBus, MemoryServer
from broker.telemetry import Health
from broker.topology import Log
from store import recorder, writer
from store.database import connect
from store.settings import StoreSettings
from tests.store_events import RUN

SETTINGS = StoreSettings(flush_s=0.05)


def a_bus() -> MemoryBus:
    return MemoryBus(MemoryServer(log_bytes=64 << 20), RUN)


async def record(bus: Bus, url: str, *, until: Callable[[], bool] | None = None) -> Health:
    """Run the recorder to the end of the run, or until something is so."""
    health, stop = Health("recorder"), asyncio.Event()
    task = asyncio.create_task(
        recorder.run(bus, url=url, settings=SETTINGS, health=health, stop=stop)
    )
    async with asyncio.timeout(30):
        if until is not None:
            await wait_until(lambda: until() or task.done())
            stop.set()
        await task
    return health


async def wait_until(condition: Callable[[], bool]) -> None:
    """Polls: the condition lies in a database or in another task. The caller sets the limit."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


def recorded(url: str, log: Log) -> int:
    with connect(url) as connection:
        return writer.positions(connection, RUN).get(log, writer.Position()).sequence
