"""A whole run in one process: every role of its own configuration over the memory bus, to the end."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from broker.memory import MemoryBus
from broker.memory_state import MemoryServer
from broker.messages import Event, GroupGenerated, GroupKey
from broker.serve import serve
from broker.telemetry import Health, writer_id
from broker.topology import VERIFIER, Log, kind_subjects
from learner.export import export_weights
from learner.model import load_model, weights_bytes
from learner.supervise import warm_up
from learner.warmup import WarmupExample
from ops import roles, settings
from ops.paths import RunPaths
from ops.settings import Configuration
from tests.policy_run import Died, Mortal
from workers.verifiers import worker as verifier
from workers.verifiers.pool import Pool

CONFIG = {
    "run": {
        "name": "whole", "seed": 7, "steps": 3, "groups_per_step": 4, "group_size": 4,
        "max_staleness": 0, "deterministic": True, "no_progress_steps": 100,
    },
    "model": {
        "tiny": {
            "characters": "0123456789abcdefghijklmnopqrstuvwxyz+-*=()<>?:;,.!&|~ ",
            "hidden": 32, "layers": 2, "heads": 2, "kv_heads": 2, "intermediate": 64, "positions": 64,
        }
    },
    "source": [
        {"domain": "short", "generator": "ordering", "options": {"length": 2, "letters": 12},
         "verifier": {"name": "exact"}, "eval_items": 0},
        {"domain": "long", "generator": "ordering", "options": {"length": 3, "letters": 8},
         "verifier": {"name": "exact"}, "eval_items": 0},
    ],
    "sampling": {"max_tokens": 6},
    "warmup": {"steps": 120, "batch_size": 32, "learning_rate": 3e-3},
    "learner": {"learning_rate": 1e-3, "checkpoint_every": 30, "weights": "object"},
}  # fmt: skip
"""Two of the demo's tasks, small enough to train in a second."""

ROLES = ("dispatcher", "rollout", "policy", "learner", "recorder")
LIMIT_S = 240.0
"""For ten steps, and as long again for ten more."""


@dataclass
class Finished:
    """A run that has ended, and where it is on record."""

    configuration: Configuration
    server: MemoryServer

    def bus(self) -> MemoryBus:
        return MemoryBus(self.server, self.configuration.run.id)

    async def events(self, log: Log, kind: type[Event]) -> list[tuple[int, Event]]:
        """(sequence, event) of one kind, in log order."""
        bus = self.bus()
        cursor = await bus.cursor(log, 0, [kind_subjects(bus.run, kind.KIND)])
        found: list[tuple[int, Event]] = []
        while read := await cursor.read(1000, 0):
            found += [(stored.sequence, stored.event()) for stored in read]
        return found


def configured(name: str, /, **tables: dict[str, object]) -> Configuration:
    """The configuration above with tables or keys of tables replaced."""
    tree: dict[str, object] = {"policy": {}, "store": {}, **CONFIG}
    for table, values in tables.items():
        known = tree.get(table)
        tree[table] = {**known, **values} if isinstance(known, dict) else values
    run = tree["run"]
    assert isinstance(run, dict)
    return settings.check({**tree, "run": {**run, "id": name}}, name)


def warm_model(folder: Path) -> Path:
    """A model folder after the supervised start: what all runs of a test session begin with."""
    c = configured("warm")
    torch.set_num_threads(1)
    model_dir = roles.prepare_model(c, RunPaths(folder / "made"))
    model = load_model(model_dir, device="cpu", seed=c.run.seed)
    examples: Sequence[WarmupExample] = list(roles.warmup_examples(c, model_dir))
    warm_up(
        model, examples, c.warmup, micro_batch_tokens=4096, seed=c.run.seed, dtype=torch.float32,
        progress=lambda step, loss: None,
    )  # fmt: skip
    export_weights(weights_bytes(model), model_dir, folder / "warm")
    return folder / "warm"


def from_warm(folder: Path) -> dict[str, dict[str, object]]:
    """Tables of a run that begins with the warm model."""
    return {"model": {"tiny": None, "path": str(folder)}, "warmup": {"steps": 0}}


async def train_all(
    runs: Sequence[tuple[Configuration, Path]], pool: Pool, *, at_once: int = 6
) -> list[Finished]:
    """Runs side by side, each in a folder of its own: most of a short run is waiting."""
    room = asyncio.Semaphore(at_once)

    async def one(c: Configuration, folder: Path) -> Finished:
        async with room:
            return await train(c, folder, pool)

    return await asyncio.gather(*(one(c, folder) for c, folder in runs))


async def train(
    c: Configuration, folder: Path, pool: Pool, *, policy_dies_at: Sequence[int] = ()
) -> Finished:
    """The run from its start to its end; recorded where `store.url` names a database.

    policy_dies_at: the publication with which each life of the policy but the last ends.
    """
    server = MemoryServer()
    names = [name for name in ROLES if name != "recorder" or c.store.url]
    async with asyncio.timeout(LIMIT_S * max(1.0, c.run.steps / 10)), asyncio.TaskGroup() as tasks:
        stop = asyncio.Event()
        grading = tasks.create_task(_grade(MemoryBus(server, c.run.id), pool, stop))
        deaths = {"policy": policy_dies_at}
        live = [
            tasks.create_task(_live(name, c, folder, server, deaths.get(name, ())))
            for name in names
        ]
        await asyncio.wait(live)
        stop.set()
        await grading
    return Finished(c, server)


async def _live(
    name: str, c: Configuration, folder: Path, server: MemoryServer, dies_at: Sequence[int]
) -> None:
    bus = MemoryBus(server, c.run.id)
    # Some die with the publication stored, some before it is.
    buses = [*(Mortal(bus, count, stored=bool(count % 2)) for count in dies_at), bus]
    for own in buses:
        post = roles.Post(c, RunPaths(folder), own, Health(name), asyncio.Event(), False)  # pyright: ignore[reportArgumentType]
        try:
            await roles.load(name)(post)
        except Died:
            continue
        if own is not bus:
            raise AssertionError(f"{name}: the run ended before one of its deaths {dies_at}")
        return
    raise AssertionError(f"{name}: the last life ended early")


async def _grade(bus: MemoryBus, pool: Pool, stop: asyncio.Event) -> None:
    """The verifier's work, by processes that several runs share."""
    me = writer_id("verifier")

    async def handle(event: Event) -> Sequence[Event]:
        asked = await verifier.asked_for(bus, event)
        assert asked is not None
        assert isinstance(event, GroupGenerated)
        return [await verifier.verified(event, asked, pool, me)]

    def fail(group: GroupKey, event: Event | None, reason: str) -> Event:
        return verifier.failed(group, event, None, reason, me)

    await serve(bus, VERIFIER, handle, fail=fail, slots=16, health=Health("verifier"), stop=stop)
