"""Whole lives of a learner on the memory bus, some of which end early."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from broker.bus import Stored
from broker.memory import MemoryBus
from broker.memory_state import MemoryServer
from broker.messages import (
    CheckpointWritten,
    Event,
    GroupAnnotated,
    RunEnded,
    RunStarted,
    StepCommitted,
    StepPlanned,
    WeightsPublished,
)
from broker.settings import RunSettings
from broker.telemetry import Health
from broker.topology import Log
from learner import worker
from learner.settings import LearnerSettings, ModelSettings, WarmupSettings
from learner.warmup import WarmupExample
from tests.builders import AT_US, WRITER
from tests.learning import TINY, a_group, a_model_folder

STEPS = 4
LEARNER_KINDS = (StepPlanned, StepCommitted, WeightsPublished, CheckpointWritten)


class Crash(Exception):
    """This process dies here."""


class DyingBus(MemoryBus):
    """Dies before or after the nth publication of a kind, or of an object."""

    def __init__(self, server, run, *, kind="", count=0, after=False) -> None:
        super().__init__(server, run)
        self.kind, self.count, self.after = kind, count, after
        self.seen: Counter[str] = Counter()

    def _dies(self, kind: str, *, after: bool) -> None:
        if (kind, after, self.seen[kind]) == (self.kind, self.after, self.count):
            raise Crash(f"{'after' if after else 'before'} {kind} {self.count}")

    async def publish(self, event: Event, **expect) -> int:
        self.seen[event.KIND] += 1
        self._dies(event.KIND, after=False)
        sequence = await super().publish(event, **expect)
        self._dies(event.KIND, after=True)
        return sequence

    async def put_object(self, name: str, chunks: bytes) -> None:
        self.seen["object"] += 1
        self._dies("object", after=False)
        await super().put_object(name, chunks)
        self._dies("object", after=True)


class HeldBus(MemoryBus):
    """Keeps back publications of a kind until it is released, as a process that was stopped does."""

    def __init__(self, server, run, *, kind: str) -> None:
        super().__init__(server, run)
        self.kind = kind
        self.released = asyncio.Event()

    async def publish(self, event: Event, **expect) -> int:
        if self.kind == event.KIND:
            await self.released.wait()
        return await super().publish(event, **expect)


def windows(count: int = STEPS, *, groups: int = 2, **changes) -> list[list[GroupAnnotated]]:
    return [
        [
            a_group(
                f"{(window - 1) * groups + index + 1:08d}-0-0",
                **{"window": window, "window_size": groups, "window_index": index} | changes,
            )
            for index in range(groups)
        ]
        for window in range(1, count + 1)
    ]


def started(**changes) -> RunStarted:
    fields = {
        "writer_id": WRITER, "at_us": AT_US, "name": "r", "config": "{}", "config_sha256": "0",
        "seed": 0, "versions": {},
    }  # fmt: skip
    return RunStarted.model_validate(fields | changes)


def ended(**last_sequences: int) -> RunEnded:
    return RunEnded(
        writer_id=WRITER, at_us=AT_US, reason="", status="finished", last_sequences=last_sequences
    )


async def a_server(batches: Sequence[Sequence[GroupAnnotated]]) -> MemoryServer:
    server = MemoryServer()
    bus = MemoryBus(server, "r")
    await bus.publish(started())
    for batch in batches:
        await bus.publish_batch(batch)
    return server


async def events(server: MemoryServer, log: Log = Log.LEDGER) -> list[Event]:
    return [stored.event() for stored in await all_stored(server, log)]


async def all_stored(server: MemoryServer, log: Log) -> list[Stored]:
    bus = MemoryBus(server, "r")
    cursor = await bus.cursor(log, 0)
    found: list[Stored] = []
    while read := await cursor.read(100, 0):
        found += read
    return found


async def until(server: MemoryServer, holds) -> None:
    """Wait for the ledger to hold what a test needs."""
    cursor = await MemoryBus(server, "r").cursor(Log.LEDGER, 0)
    found: list[Event] = []
    async with asyncio.timeout(30):
        while not holds(found):
            found += [stored.event() for stored in await cursor.read(100, 1.0)]


def of_kind(found: Sequence[Event], kind):
    return [event for event in found if isinstance(event, kind)]


class Run:
    """One life of a learner over a server; ends the run when the last step is committed."""

    def __init__(self, folder: Path, server: MemoryServer, **changes) -> None:
        self.folder = folder
        self.server = server
        self.run = RunSettings.model_validate(
            {"id": "r", "steps": STEPS, "groups_per_step": 2, "group_size": 2, "max_staleness": 4}
            | {k: v for k, v in changes.items() if k in RunSettings.model_fields}
        )
        self.settings = LearnerSettings.model_validate(
            {
                "learning_rate": 1e-2,
                "checkpoint_every": 2,
                "weights": "object",
                # These groups were sampled by nobody.
                "identity_band": 1e9,
            }
            | {k: v for k, v in changes.items() if k in LearnerSettings.model_fields}
        )
        self.warmup = WarmupSettings(steps=changes.get("warmup", 2), batch_size=2)
        self.stop = asyncio.Event()
        self.health = Health("learner")

    async def live(self, bus: MemoryBus | None = None) -> None:
        async with asyncio.timeout(60):
            await worker.run(
                bus or MemoryBus(self.server, "r"),
                run=self.run,
                model=ModelSettings(tiny=TINY),
                model_dir=a_model_folder(self.folder / "model"),
                settings=self.settings,
                warmup=self.warmup,
                warmup_examples=lambda: iter([WarmupExample([3, 4], [5, 2])] * 3),
                run_dir=self.folder,
                health=self.health,
                stop=self.stop,
            )

    async def to_the_end(self, bus: MemoryBus | None = None) -> list[Event]:
        """Live until the last step is committed, then end the run; the ledger."""
        life = asyncio.create_task(self.live(bus))
        own = MemoryBus(self.server, "r")
        last = self.run.steps
        committed = asyncio.create_task(
            until(
                self.server, lambda found: last in [c.step for c in of_kind(found, StepCommitted)]
            )
        )
        await asyncio.wait({life, committed}, return_when=asyncio.FIRST_COMPLETED)
        story = [e for e in await events(self.server) if isinstance(e, RunStarted | RunEnded)]
        if committed.done() and isinstance(story[-1], RunStarted):
            await own.publish(ended())
        committed.cancel()
        await life
        return await events(self.server)


def written(found: Sequence[Event]) -> list[str]:
    """The learner's events in order, as words."""
    words = []
    for event in found:
        match event:
            case StepPlanned():
                words.append(f"plan {event.step}")
            case StepCommitted():
                words.append(f"commit {event.step}")
            case WeightsPublished():
                words.append(f"weights {event.version}")
            case CheckpointWritten():
                words.append(f"checkpoint {event.step}")
            case _:
                pass
    return words


def outcome(found: Sequence[Event]) -> list[tuple]:
    """All that must be the same in two runs."""
    return [(e.step, e.version, e.digest) for e in of_kind(found, StepCommitted)] + [
        (e.step, e.version, e.digest) for e in of_kind(found, WeightsPublished)
    ]
