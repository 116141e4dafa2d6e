"""A rollout worker on a bus in memory, with requests and published weights to give it."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from broker.arrays import token_array
from broker.memory import MemoryBus, MemoryServer
from broker.messages import (
    GroupGenerated,
    GroupRequested,
    RunEnded,
    RunStarted,
    Sampling,
    WeightsPublished,
)
from broker.settings import RunSettings
from broker.telemetry import Health
from broker.topology import Log
from tests.builders import AT_US, WRITER, a_key, a_request
from tests.rollout_models import a_folder, a_model, save_weights
from workers.rollout import worker
from workers.rollout.settings import RolloutSettings


def a_started(**changes: object) -> RunStarted:
    fields = {
        "writer_id": WRITER,
        "at_us": AT_US,
        "name": "t",
        "config": "{}",
        "config_sha256": "0",
        "seed": 7,
        "versions": {},
    }
    return RunStarted.model_validate(fields | changes)


def an_ended() -> RunEnded:
    return RunEnded(
        writer_id=WRITER, at_us=AT_US, reason="done", status="finished", last_sequences={}
    )


def a_train_request(number: int = 1, **changes: object) -> GroupRequested:
    fields = {
        "prompt_ids": token_array([4 + number, 6, 7]),
        "sampling": Sampling(temperature=1.0, max_tokens=8),
    }
    return a_request(f"{number:08d}-0-0", **(fields | changes))


def an_eval_request(version: int, item: int, seq: int) -> GroupRequested:
    group = a_key(f"v{version:06d}-math-{item:05d}-0", purpose="eval", request_seq=seq)
    return a_request(
        size=1,
        group=group,
        prompt_ids=token_array([5, 6, 7]),
        sampling=Sampling(temperature=0.0, max_tokens=8),
        requested_version=version,
        mixture=None,
        benchmark="math",
    )


@dataclass
class Scene:
    """A run on a bus in memory, with model weights as files."""

    path: Path
    bus: MemoryBus
    deterministic: bool = False
    health: Health = field(default_factory=lambda: Health("rollout"))
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def publish_weights(self, version: int, *, digest: str | None = None) -> None:
        file = save_weights(a_model(seed=version), self.path / f"weights-{version}")
        await self.bus.publish(
            WeightsPublished(
                writer_id=WRITER,
                at_us=AT_US,
                version=version,
                step=version,
                digest=digest or hashlib.sha256(file.read_bytes()).hexdigest(),
                uri=f"file:{file}",
                bytes=file.stat().st_size,
            )
        )

    async def generated(self, count: int, wait_s: float = 20.0) -> list[GroupGenerated]:
        """The first `count` messages of GENERATED, in log order."""
        cursor = await self.bus.cursor(Log.GENERATED, 0)
        found: list[GroupGenerated] = []
        async with asyncio.timeout(wait_s):
            while len(found) < count:
                for stored in await cursor.read(100, 0.1):
                    event = stored.event()
                    assert isinstance(event, GroupGenerated)
                    found.append(event)
        await cursor.close()
        return found

    async def quiet(self, wait_s: float = 0.3) -> int:
        """How many messages GENERATED holds after a while."""
        await asyncio.sleep(wait_s)
        return (await self.bus.state(Log.GENERATED)).messages

    def run(self, **settings: object) -> "asyncio.Task[None]":
        run = RunSettings(
            seed=7, steps=9, groups_per_step=2, group_size=2,
            max_staleness=0 if self.deterministic else 2, deterministic=self.deterministic,
        )  # fmt: skip
        return asyncio.create_task(
            worker.run(
                self.bus,
                run=run,
                settings=RolloutSettings.model_validate({"max_rows": 16} | settings),
                model_dir=a_folder(self.path / "model"),
                device="cpu",
                dtype="float32",
                cache_dir=self.path / "cache",
                health=self.health,
                stop=self.stop,
            )
        )

    @asynccontextmanager
    async def running(self, **settings: object) -> AsyncIterator[None]:
        """A worker that is told to stop at the end, and obeys."""
        task = self.run(**settings)
        try:
            yield
        finally:
            self.stop.set()
            async with asyncio.timeout(8):
                await task
            self.stop.clear()


async def a_scene(path: Path, *, deterministic: bool = False) -> Scene:
    """A run that has started, without weights."""
    bus = MemoryBus(MemoryServer(), "t")
    await bus.publish(a_started())
    return Scene(path, bus, deterministic)
