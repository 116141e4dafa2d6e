"""Model weights for the engines: the newest for training, exactly the pinned ones for evaluation.

A version is in force only when its file was fetched whole, checked and installed; until then the old one is.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from broker import weights
from broker.bus import Bus
from broker.errors import Retry, TooLong
from broker.messages import WeightsPublished
from broker.offer import newest as newest_offer
from broker.telemetry import Health
from workers.rollout.engine import (
    BadWeights,
    Engine,
    EngineError,
    Job,
    Receiver,
    Result,
    Untaken,
)
from workers.rollout.ledger_view import LedgerView
from workers.rollout.metrics import swap_seconds, weights_failures_total

FETCH_WAIT_S = 30.0
"""A file may be deleted while it is fetched; then the next look is at a newer one."""
RETRY_S = 1.0

log = structlog.get_logger()

Load = Callable[[Engine, WeightsPublished], Awaitable[None]]


def loader(bus: Bus, cache_dir: Path, wait_s: float) -> Load:
    """Fetch, check and install a published version; raises TooLong, BadWeights or EngineError."""

    async def load(engine: Engine, published: WeightsPublished) -> None:
        file = await weights.fetch(bus, published, cache_dir, min(wait_s, FETCH_WAIT_S))
        with swap_seconds.time():
            await engine.load(file, published.version)
        if file.parent == cache_dir:
            # A private copy, now in memory; a file in the shared directory is not ours to delete.
            await asyncio.to_thread(file.unlink, missing_ok=True)

    return load


def from_learner(bus: Bus, receiver: Receiver, stored: Load) -> Load:
    """From the learner's memory where that is offered and works; else from where the version is stored."""

    async def load(engine: Engine, published: WeightsPublished) -> None:
        # The first weights start the engine, which reads them from a file.
        if engine.version is not None:
            reason = await _untaken(bus, receiver, published)
            if not reason:
                return
            log.warning("weights_not_sent", version=published.version, reason=reason)
        await stored(engine, published)

    return load


async def _untaken(bus: Bus, receiver: Receiver, published: WeightsPublished) -> str:
    """Why the engine does not have them from the learner; empty when it has. Raises EngineError."""
    offer = await newest_offer(bus)
    if offer is None:
        return "nobody offers any"
    try:
        with swap_seconds.time():
            await receiver.receive(offer, published.version, published.digest)
    except Untaken as reason:
        return str(reason) or "untaken"
    return ""


class NewestWeights:
    """Keeps one engine at the newest published version, which never goes back."""

    def __init__(self, engine: Engine, ledger: LedgerView, load: Load) -> None:
        self._engine = engine
        self._ledger = ledger
        self._load = load
        self._changed = asyncio.Condition()

    def _due(self) -> bool:
        newest, in_force = self._ledger.newest, self._engine.version
        return newest is not None and (in_force is None or newest.version > in_force)

    async def keep(self) -> None:
        """Until cancelled. A version that cannot be had leaves the old one in force and is tried again."""
        while True:
            await self._ledger.until(self._due, "newer weights", None)
            newest = self._ledger.newest
            if newest is None:
                continue
            try:
                await self._load(self._engine, newest)
            except (TooLong, BadWeights, EngineError) as error:
                weights_failures_total.inc()
                log.warning("weights_not_taken", version=newest.version, reason=str(error))
                await asyncio.sleep(RETRY_S)
            else:
                log.info("weights_taken", version=newest.version)
            async with self._changed:
                self._changed.notify_all()

    def in_force(self, version: int) -> bool:
        return self._engine.version is not None and self._engine.version >= version

    async def at_least(self, version: int, wait_s: float, health: Health) -> None:
        """Raises Retry after `wait_s`."""
        if self.in_force(version):
            return
        with health.waiting_for(f"weights version {version} or newer", wait_s):
            try:
                async with asyncio.timeout(wait_s), self._changed:
                    await self._changed.wait_for(lambda: self.in_force(version))
            except TimeoutError:
                raise Retry(
                    f"weights version {version} or newer not in force after {wait_s:g} s; "
                    f"version {self._engine.version} is"
                ) from None


class PinnedWeights:
    """An engine of its own for jobs that need one exact version; made at first use, lowest version first."""

    def __init__(
        self, make: Callable[[], Engine], ledger: LedgerView, load: Load, wait_s: float
    ) -> None:
        self._make = make
        self._ledger = ledger
        self._load = load
        self._wait_s = wait_s
        self._changed = asyncio.Condition()
        self._loading = asyncio.Lock()
        self._wanted: Counter[int] = Counter()
        """Jobs that wait or run, by version."""
        self._running: Counter[int] = Counter()
        self.engine: Engine | None = None

    async def generate(self, version: int, job: Job, health: Health) -> Result:
        """Raises Retry when the version is not to be had within the limit."""
        self._wanted[version] += 1
        try:
            with health.waiting_for(f"evaluation of weights version {version}", self._wait_s):
                await self._turn(version)
            try:
                engine = await self._at(version, health)
                (result,) = await engine.generate([job])
                return result
            finally:
                self._running[version] -= 1
        finally:
            self._wanted[version] -= 1
            async with self._changed:
                self._changed.notify_all()

    async def _turn(self, version: int) -> None:
        """Wait until no other version runs and no older one waits, then count as running."""

        def ours() -> bool:
            lowest = min(+self._wanted)
            return lowest == version and all(v == version for v in +self._running)

        try:
            async with asyncio.timeout(self._wait_s), self._changed:
                await self._changed.wait_for(ours)
                self._running[version] += 1
        except TimeoutError:
            raise Retry(
                f"evaluation of version {version}: other versions kept the engine for {self._wait_s:g} s"
            ) from None

    async def _at(self, version: int, health: Health) -> Engine:
        async with self._loading:
            if self.engine is None:
                self.engine = await asyncio.to_thread(self._make)
            if self.engine.version != version:
                with health.waiting_for(f"weights version {version}", self._wait_s):
                    await self._take(self.engine, version)
            return self.engine

    async def _take(self, engine: Engine, version: int) -> None:
        try:
            await self._ledger.until(
                lambda: version in self._ledger.weights, f"weights version {version}", self._wait_s
            )
            await self._load(engine, self._ledger.weights[version])
        except (TooLong, BadWeights, EngineError) as error:
            weights_failures_total.inc()
            raise Retry(str(error), delay_s=RETRY_S) from error

    async def close(self) -> None:
        if self.engine is not None:
            await self.engine.close()
