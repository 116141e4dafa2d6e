"""Whether the run goes on: read from the leader with each question, so a blind watch does no harm."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from broker.bus import Bus
from broker.errors import TooLong
from broker.messages import RunEnded, RunStarted
from broker.telemetry import Health
from broker.topology import Log, kind_subjects

Result = TypeVar("Result")

POLL_S = 0.5


class RunWatch:
    """Waits that end when the process is asked to stop or the run has ended."""

    def __init__(self, bus: Bus, *, health: Health, stop: asyncio.Event) -> None:
        self._bus = bus
        self._health = health
        self._stop = stop

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    async def ended(self) -> bool:
        """RunEnded is newer than the last RunStarted."""
        run = self._bus.run
        over = await self._bus.last(Log.LEDGER, kind_subjects(run, RunEnded.KIND))
        if over is None:
            return False
        started = await self._bus.last(Log.LEDGER, kind_subjects(run, RunStarted.KIND))
        return started is None or over.sequence > started.sequence

    async def over(self) -> bool:
        return self.stopping or await self.ended()

    async def result_of(
        self,
        task: asyncio.Task[Result],
        what: str,
        limit_s: float,
        *,
        meanwhile: Callable[[], Awaitable[None]] | None = None,
    ) -> Result | None:
        """What `task` returns, or None when the run or this process ends first. TooLong at the limit.

        meanwhile: done again and again while waiting.
        """
        deadline = time.monotonic() + limit_s
        with self._health.waiting_for(what, limit_s):
            while True:
                done, _ = await asyncio.wait({task}, timeout=POLL_S)
                self._health.beat()
                if done:
                    return task.result()
                if await self.over():
                    return None
                if meanwhile is not None:
                    await meanwhile()
                if time.monotonic() > deadline:
                    raise TooLong(f"{what}: nothing for {limit_s:.0f} s")

    async def wait_for_end(self, what: str, limit_s: float) -> None:
        """Returns when the run has ended or this process is asked to stop."""
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await self.result_of(stopped, what, limit_s)
        finally:
            stopped.cancel()
