"""Full logs, told as if their messages came at a pace: publishing costs the reader nothing."""

import asyncio
import time
from collections.abc import Callable, Sequence

from broker.bus import Stored
from broker.memory import MemoryBus, MemoryCursor
from broker.memory_state import MemoryServer
from broker.telemetry import Health
from broker.topology import Log

DelayOf = Callable[[Log, int], float]
"""Seconds from the start to the arrival of a message: by its log and sequence."""


class PacedBus(MemoryBus):
    """What a cursor reads has arrived since the first was opened."""

    def __init__(self, server: MemoryServer, run: str, delay_of: DelayOf) -> None:
        super().__init__(server, run)
        self._delay_of = delay_of
        self._begun_at: float | None = None

    async def cursor(
        self, log: Log, after: int, subjects: Sequence[str] = (), *, headers_only: bool = False
    ) -> "PacedCursor":
        self._begun_at = self._begun_at or time.monotonic()
        return PacedCursor(await super().cursor(log, after, subjects), self, log)

    def age_s(self, log: Log, sequence: int) -> float:
        """How long ago the message arrived; negative when it has not."""
        return (
            time.monotonic() - (self._begun_at or time.monotonic()) - self._delay_of(log, sequence)
        )


class PacedCursor(MemoryCursor):
    def __init__(self, whole: MemoryCursor, bus: PacedBus, log: Log) -> None:
        self._whole = whole
        self._bus = bus
        self._of = log

    async def read(self, limit: int, wait_s: float) -> list[Stored]:
        first_s = -self._bus.age_s(self._of, self._whole.position + 1)
        if first_s > 0:
            await asyncio.sleep(min(first_s, wait_s))
        here = 0
        while here < limit and self._bus.age_s(self._of, self._whole.position + here + 1) >= 0:
            here += 1
        return await self._whole.read(here, wait_s) if here else []


class LagSeen(Health):
    """Remembers of every message how long after its arrival its rows were committed."""

    def __init__(self, bus: PacedBus) -> None:
        super().__init__("recorder")
        self.lags: list[float] = []
        self._bus = bus
        self._recorded: dict[Log, int] = {}

    def note(self, **facts: object) -> None:
        """The recorder notes its sequences behind each commit."""
        super().note(**facts)
        recorded = facts.get("recorded", {})
        assert isinstance(recorded, dict)
        for log, last in recorded.items():
            new = range(self._recorded.get(log, 0) + 1, last + 1)
            self.lags += [self._bus.age_s(log, sequence) for sequence in new]
        self._recorded |= recorded
