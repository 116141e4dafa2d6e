"""What one may ask of a run through its broker: how it stands, and to end."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from broker.bus import Bus
from broker.errors import SluiceError
from broker.messages import Incident
from broker.telemetry import now_us, writer_id
from broker.topology import Log
from ops.progress import Pulse, merged, process_of, queue_depths, silent_roles

FLOW = (Log.REQUESTS, Log.GENERATED, Log.VERIFIED, Log.ANNOTATED, Log.LEDGER)
PULSE_S = 1.0
"""Between two looks at queues and waits."""
MEMORY_S = 3.0
ASK_WAIT_S = 0.3
HEARD_S = 30.0
"""How long the last word of a process that does not answer is shown."""
Statuses = tuple[Mapping[str, Any], ...]


async def look_at_all(bus: Bus, wait_s: float, limit_s: float) -> Pulse:
    """Queues of the logs, and what the processes say; asked until every role has, at most so long.

    A process answers from its event loop, which may be busy for a second. When nobody answers at
    all, there is nobody to wait for.
    """
    loop = asyncio.get_running_loop()
    deadline, statuses = loop.time() + limit_s, tuple(await bus.ask_status(wait_s))
    while statuses and silent_roles(statuses) and loop.time() < deadline:
        statuses = merged(statuses, await bus.ask_status(wait_s))
    return await pulse_of(bus, statuses)


async def pulse_of(bus: Bus, statuses: Statuses) -> Pulse:
    states = {name: await bus.state(name) for name in FLOW}
    stored = sum(state.last for state in states.values())
    return Pulse(statuses, queue_depths(states, statuses), stored=stored)


async def request_stop(bus: Bus, why: str) -> None:
    """Ask the dispatcher to drain and end the run."""
    asking = {"kind": "stop_requested", "role": "ops", "detail": why}
    await bus.publish(Incident(writer_id=writer_id("ops"), at_us=now_us(), **asking))


class Heard:
    """What each process said last, since one that computes may not answer for a while.

    What it waited for then is no news any more, and left out.
    """

    def __init__(self) -> None:
        self._said: dict[object, tuple[float, Mapping[str, object]]] = {}

    def take(self, statuses: Sequence[Mapping[str, object]], now: float) -> Statuses:
        """The statuses, and those of others that were heard not long ago."""
        self._said |= {process_of(status): (now, status) for status in statuses}
        self._said = {key: one for key, one in self._said.items() if now - one[0] <= HEARD_S}
        return tuple(
            status if at == now else {**status, "waits": ()} for at, status in self._said.values()
        )


class Watcher:
    """Looks again and again; holds what it saw last. For people, and to tell progress from standstill."""

    def __init__(self, bus: Bus, look_at_memory: Callable[[], None]) -> None:
        self._bus, self._look_at_memory = bus, look_at_memory
        self.pulse = Pulse()
        self._heard = Heard()

    async def watch(self) -> None:
        loop, memory_at = asyncio.get_running_loop(), 0.0
        while True:
            with suppress(SluiceError):  # a broker that restarts; shown as it was
                said = await self._bus.ask_status(ASK_WAIT_S)
                self.pulse = await pulse_of(self._bus, self._heard.take(said, loop.time()))
            if loop.time() >= memory_at:
                memory_at = loop.time() + MEMORY_S
                await asyncio.to_thread(self._look_at_memory)
            await asyncio.sleep(PULSE_S)
