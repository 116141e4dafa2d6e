"""What the rollout needs to know of the LEDGER: published weights, the run's end.

Read by cursor, and by asking for the newest messages whenever the cursor has been silent for a second:
a blind reader does no harm.
"""

import asyncio
from collections.abc import Callable

from broker.bus import Bus, Stored
from broker.errors import TooLong
from broker.messages import (
    LogPurged,
    RunEnded,
    RunStarted,
    WeightsPublished,
)
from broker.topology import Log, kind_subjects

POLL_S = 1.0
KINDS = (RunStarted.KIND, WeightsPublished.KIND, LogPurged.KIND, RunEnded.KIND)


class LedgerView:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._subjects = [kind_subjects(bus.run, kind) for kind in KINDS]
        self._changed = asyncio.Condition()
        self._started_seq = self._ended_seq = 0
        self.weights: dict[int, WeightsPublished] = {}
        """By version."""
        self.floor = 0
        """Requests up to this request_seq have ended."""

    @property
    def newest(self) -> WeightsPublished | None:
        return self.weights[max(self.weights)] if self.weights else None

    @property
    def run_live(self) -> bool:
        return self._started_seq > self._ended_seq

    @property
    def run_ended(self) -> bool:
        """False again once the run is resumed."""
        return self._ended_seq > self._started_seq

    def fold(self, stored: Stored) -> None:
        match stored.event():
            case WeightsPublished() as published:
                self.weights[published.version] = published
            case LogPurged() as purged:
                self.floor = max(self.floor, purged.floor)
            case RunStarted():
                self._started_seq = max(self._started_seq, stored.sequence)
            case RunEnded():
                self._ended_seq = max(self._ended_seq, stored.sequence)
            case _:
                pass

    async def follow(self) -> None:
        """Until cancelled."""
        cursor = await self._bus.cursor(Log.LEDGER, 0, self._subjects)
        # The newest first: a long ledger is read in pieces, and nobody should fetch weights long deleted.
        found = await self._ask()
        try:
            while True:
                for stored in found:
                    self.fold(stored)
                async with self._changed:
                    self._changed.notify_all()
                found = await cursor.read(256, POLL_S) or await self._ask()
        finally:
            await cursor.close()

    async def _ask(self) -> list[Stored]:
        found = [await self._bus.last(Log.LEDGER, subject) for subject in self._subjects]
        return [stored for stored in found if stored is not None]

    async def until(self, holds: Callable[[], bool], what: str, wait_s: float | None) -> None:
        """Wait for the LEDGER to make something true; TooLong after `wait_s`."""
        try:
            async with asyncio.timeout(wait_s), self._changed:
                await self._changed.wait_for(holds)
        except TimeoutError:
            raise TooLong(f"{what} not published after {wait_s:g} s") from None
