"""Recorded steps can be taken again, to the same weights; what stands in the way is named."""

from pathlib import Path

import pytest

from broker.errors import BadConfiguration
from broker.memory import MemoryBus, MemoryServer
from broker.messages import CheckpointWritten, StepCommitted
from broker.topology import Log
from learner.checkpoint import MODEL
from learner.replay import Replay, Retaken, replay
from learner.settings import ModelSettings
from tests.learner_lives import Run, a_server, events, of_kind, windows
from tests.learning import TINY

KEPT = {"keep_checkpoints": 10}


async def a_finished_run(folder: Path, **changes) -> MemoryServer:
    server = await a_server(windows())
    await Run(folder, server, **changes).to_the_end()
    return server


async def replayed(
    folder: Path, server: MemoryServer, to_step: int | None = None, **changes
) -> Replay:
    run = Run(folder, server, **changes)
    seen: list[Retaken] = []
    found = await replay(
        MemoryBus(server, "r"),
        run=run.run,
        model=ModelSettings(tiny=TINY),
        model_dir=folder / "model",
        settings=run.settings,
        warmup=run.warmup,
        run_dir=folder,
        to_step=to_step,
        progress=seen.append,
    )
    assert seen == found.retaken
    return found


async def test_a_replay_from_the_first_checkpoint_reaches_every_committed_digest(tmp_path: Path):
    server = await a_finished_run(tmp_path, **KEPT)
    before = await events(server)

    found = await replayed(tmp_path, server)

    assert found.agrees
    assert [(one.step, one.status) for one in found.retaken] == [
        (0, "checkpoint"), (1, "trained"), (2, "trained"), (3, "trained"), (4, "trained"),
    ]  # fmt: skip
    commits = of_kind(before, StepCommitted)
    assert [one.redone for one in found.retaken[1:]] == [c.digest for c in commits]
    assert len({one.redone for one in found.retaken}) == 5
    assert await events(server) == before


async def test_a_replay_stops_at_the_step_asked_for(tmp_path: Path):
    server = await a_finished_run(tmp_path, **KEPT)

    assert [one.step for one in (await replayed(tmp_path, server, 1)).retaken] == [0, 1]
    assert [one.step for one in (await replayed(tmp_path, server, 0)).retaken] == [0]


@pytest.mark.parametrize("asked", [-1, 5])
async def test_a_step_that_was_never_committed_is_refused(tmp_path: Path, asked: int):
    server = await a_finished_run(tmp_path, **KEPT)

    with pytest.raises(BadConfiguration, match=rf"--to-step {asked}: expected 0..4"):
        await replayed(tmp_path, server, asked)


async def test_a_step_that_comes_out_differently_is_told_with_both_digests(tmp_path: Path):
    server = await a_finished_run(tmp_path, **KEPT)

    # Another learning rate stands for other hardware.
    found = await replayed(tmp_path, server, 2, weight_decay=0.5)

    assert found.reached
    assert not found.agrees
    assert [one.equal for one in found.retaken] == [True, False, False]


async def test_where_the_log_is_purged_a_replay_begins_at_the_next_checkpoint(tmp_path: Path):
    server = await a_finished_run(tmp_path, **KEPT)
    await MemoryBus(server, "r").purge(Log.ANNOTATED, 3)

    found = await replayed(tmp_path, server)

    assert found.agrees
    assert [one.step for one in found.retaken] == [2, 3, 4]
    assert found.missing == [
        "from checkpoint 0: step 1: ANNOTATED was purged up to 3; its groups begin at 1"
    ]


async def test_what_is_missing_is_said_when_no_checkpoint_allows_it(tmp_path: Path):
    server = await a_finished_run(tmp_path, keep_checkpoints=1)

    found = await replayed(tmp_path, server, 3)

    assert (found.reached, found.agrees) == (False, False)
    assert found.missing == ["no checkpoint at or before step 3 is kept; kept: 4"]


async def test_purged_groups_and_plans_are_named_when_they_stand_in_the_way(tmp_path: Path):
    server = await a_finished_run(tmp_path, **KEPT)
    bus = MemoryBus(server, "r")
    await bus.purge(Log.ANNOTATED, 6)
    plan = next(s.sequence for s in await ledger(bus) if s.headers["Sluice-Kind"] == "step_planned")
    await bus.purge(Log.LEDGER, plan, keep_last_per_subject=True)

    found = await replayed(tmp_path, server, 3)

    assert not found.reached
    assert found.missing == [
        "from checkpoint 0: step 1: LEDGER no longer holds its plan",
        "from checkpoint 2: step 3: ANNOTATED was purged up to 6; its groups begin at 5",
        "checkpoints kept: 0, 2, 4",
    ]


async def ledger(bus: MemoryBus):
    cursor = await bus.cursor(Log.LEDGER, 0)
    return await cursor.read(1000, 0.1)


async def test_a_damaged_checkpoint_is_passed_over_and_named(tmp_path: Path):
    server = await a_finished_run(tmp_path, **KEPT)
    first = of_kind(await events(server), CheckpointWritten)[0]
    (Path(first.uri.removeprefix("file://")) / MODEL).write_bytes(b"x")

    found = await replayed(tmp_path, server)

    assert found.agrees
    assert found.retaken[0].step == 2
    assert "from checkpoint 0: checkpoint" in found.missing[0]
    assert "sha256" in found.missing[0]


async def test_weights_that_kl_compares_with_and_are_damaged_are_named(tmp_path: Path):
    kl = {"kl": {"name": "k3", "coefficient": 0.5}}
    server = await a_finished_run(tmp_path, **KEPT, **kl)
    first = of_kind(await events(server), CheckpointWritten)[0]
    (Path(first.uri.removeprefix("file://")) / MODEL).write_bytes(b"x")

    found = await replayed(tmp_path, server, **kl)

    assert not found.reached
    assert "from checkpoint 2: learner.kl compares with the run's version 0" in found.missing[1]


async def test_a_skipped_step_is_passed_over_and_compared(tmp_path: Path):
    batches = windows(3)
    # From weights that do not exist yet: the sweep drops the whole window.
    batches[1] = windows(3, generations=())[1]
    server = await a_server(batches)
    await Run(tmp_path, server, steps=3, **KEPT).to_the_end()

    found = await replayed(tmp_path, server, steps=3, **KEPT)

    assert found.agrees
    assert [one.status for one in found.retaken] == ["checkpoint", "trained", "skipped", "trained"]
    assert found.retaken[2].redone == found.retaken[1].redone
