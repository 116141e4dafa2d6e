"""What the learner does about space: old and orphaned weights go, a filling log calls for a checkpoint."""

import asyncio
from collections.abc import Sequence

import pytest

from broker.bus import Stored
from broker.memory import MemoryBus, MemoryCursor
from broker.memory_state import MemoryServer
from broker.messages import CheckpointWritten, StepCommitted, WeightsPublished
from broker.topology import Log
from learner import retention, space
from tests.builders import AT_US, WRITER, a_key, a_request, an_annotated
from tests.learner_lives import (
    Crash,
    DyingBus,
    Run,
    a_server,
    events,
    of_kind,
    outcome,
    started,
    until,
    windows,
)


def test_the_newest_and_the_pinned_versions_stay():
    assert retention.deletable(range(8), pinned={0, 4}, newest=3) == [1, 2, 3]
    assert retention.deletable([0, 1], pinned=(), newest=3) == []


async def test_old_weights_are_deleted_but_not_what_an_evaluation_waits_for(tmp_path):
    server = await a_server(windows(10))
    bus = MemoryBus(server, "r")
    await bus.publish(
        a_request(
            "v000000-math-00000-0", group=a_key("v000000-math-00000-0", purpose="eval"),
            mixture=None, benchmark="math",
        )
    )  # fmt: skip

    found = await Run(tmp_path, server, steps=10, max_staleness=10, pace=0).to_the_end()

    versions = [w.version for w in of_kind(found, WeightsPublished)]
    there = [int(n.split("/")[1].split("-")[0]) for n in await bus.list_objects("weights/")]
    assert versions == list(range(11))
    assert there == [0, 7, 8, 9, 10]


class SilentAtFirst(MemoryCursor):
    """A cursor that says nothing the first time it is read."""

    silent = True

    async def read(self, limit: int, wait_s: float) -> list[Stored]:
        silent, self.silent = self.silent, False
        return [] if silent else await super().read(limit, wait_s)


class SilentBus(MemoryBus):
    async def cursor(
        self, log: Log, after: int, subjects: Sequence[str] = (), *, headers_only: bool = False
    ) -> SilentAtFirst:
        return SilentAtFirst(self._state, log, after, subjects, headers_only)


async def test_a_version_is_pinned_however_late_its_evaluation_is_delivered():
    bus = SilentBus(MemoryServer(), "r")
    for item in range(retention.READ_LIMIT + 1):
        name = f"v{item // 200:06d}-math-{item:05d}-0"
        asked = a_request(name, group=a_key(name, purpose="eval"), mixture=None, benchmark="math")
        await bus.publish(asked)
    pins = retention.Pins(bus)

    pinned = await pins.read()

    assert pinned == {0, 1}
    assert await pins.read() == {0, 1}


# --- orphans ----------------------------------------------------------------------------------


def published(version: int, digest: str) -> WeightsPublished:
    return WeightsPublished(
        writer_id=WRITER, at_us=AT_US, version=version, step=version, digest=digest, uri="", bytes=0
    )


def test_weights_are_orphans_when_their_version_was_published_otherwise_or_is_forgotten():
    stored = {
        "outlived": (1, "a"), "outlived but pinned": (2, "b"), "as published": (5, "e"),
        "of a life that died": (5, "x"), "under way": (7, "g"),
    }  # fmt: skip
    on_record = {version: published(version, digest) for version, digest in [(5, "e"), (6, "f")]}

    assert retention.orphans(stored, on_record, pinned={2}) == ["outlived", "of a life that died"]
    assert retention.orphans(stored, {}, pinned=()) == []


@pytest.mark.parametrize("kind", ["object", "directory"])
async def test_a_new_life_deletes_what_earlier_ones_left_and_nothing_else(tmp_path, kind):
    server = await a_server(windows(8))
    bus = MemoryBus(server, "r")
    with pytest.raises(Crash):
        # It dies before it deletes anything.
        await Run(tmp_path, server, steps=8, pace=0, max_staleness=8, weights=kind).live(
            DyingBus(server, "r", kind="weights_published", count=4, after=True)
        )
    orphan = f"weights/000002-{'0' * 64}.safetensors"
    stranger = "weights/notes.txt"
    (tmp_path / "weights").mkdir(exist_ok=True)
    for name in (orphan, stranger):
        await bus.put_object(name, b"left behind")
        (tmp_path / name).write_bytes(b"left behind")

    found = await Run(tmp_path, server, steps=8, pace=0, max_staleness=8, weights=kind).to_the_end()

    files = [f"weights/{path.name}" for path in (tmp_path / "weights").iterdir()]
    last = [w.uri.rpartition("/")[2] for w in of_kind(found, WeightsPublished)[-4:]]
    kept = {"object": await bus.list_objects("weights/"), "directory": sorted(files)}
    assert kept.pop(kind) == [*(f"weights/{name}" for name in last), stranger]
    assert kept.popitem()[1] == [stranger]


# --- early checkpoints ------------------------------------------------------------------------


async def a_filled_server(share: float) -> MemoryServer:
    """With the run's windows in an ANNOTATED that is filled to that share."""
    size = (await MemoryBus(await a_server(windows()), "r").state(Log.ANNOTATED)).bytes
    server = MemoryServer(log_bytes=round(size / share))
    server.message_bytes = size
    bus = MemoryBus(server, "r")
    await bus.publish(started())
    for batch in windows():
        await bus.publish_batch(batch)
    return server


async def lived(tmp_path, server: MemoryServer) -> list:
    return await Run(tmp_path, server, checkpoint_every=1000).to_the_end()


@pytest.mark.parametrize(
    ("share", "rest_s", "steps"), [(0.6, 0.0, [0, 4]), (0.8, 0.0, [0, 1, 2, 3, 4]), (0.8, 60, [0, 1, 4])]
)  # fmt: skip
async def test_a_filling_log_calls_for_a_checkpoint_but_not_at_every_step(
    tmp_path, monkeypatch, share: float, rest_s: float, steps: list[int]
):
    monkeypatch.setattr(space, "LOOK_S", 0.0)
    monkeypatch.setattr(space, "REST_S", rest_s)
    monkeypatch.setattr(space, "REST_SHARE", 0)

    found = await lived(tmp_path / "full", await a_filled_server(share))

    assert [c.step for c in of_kind(found, CheckpointWritten)] == steps
    roomy = await lived(tmp_path / "roomy", await a_server(windows()))
    assert outcome(found) == outcome(roomy)


async def test_a_log_that_fills_while_a_window_is_awaited_calls_for_a_checkpoint(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(space, "LOOK_S", 0.0)
    server = MemoryServer(log_bytes=60_000)
    bus = MemoryBus(server, "r")
    await bus.publish(started())
    await bus.publish_batch(windows(1)[0])
    run = Run(tmp_path, server, checkpoint_every=1000)
    life = asyncio.create_task(run.live())
    await until(server, lambda found: of_kind(found, StepCommitted))
    before = len(of_kind(await events(server), CheckpointWritten))

    nothing = {"window": None, "window_size": None, "window_index": None, "cut": None}
    for number in range(1000, 2000):
        state = await bus.state(Log.ANNOTATED)
        if state.bytes > 0.75 * state.limit_bytes:
            break
        request = a_request(f"{number:08d}-0-0", prompt_ids=a_request().prompt_ids)
        dropped = an_annotated(request, (), **nothing)
        await bus.publish(dropped.model_copy(update={"outcome": "dropped", "reason": "filtered"}))

    await until(server, lambda found: len(of_kind(found, CheckpointWritten)) > before)
    run.stop.set()
    await life
    assert [c.step for c in of_kind(await events(server), CheckpointWritten)] == [0, 1]
