"""The learner's protocol on the memory bus: what it writes, in which order, and who is refused."""

import asyncio

import pytest

from broker.errors import Replaced
from broker.messages import (
    CheckpointWritten,
    Incident,
    StepCommitted,
    StepPlanned,
    WeightsPublished,
)
from learner.identity import NotIdentical
from tests.learner_lives import (
    Crash,
    DyingBus,
    HeldBus,
    Run,
    a_server,
    events,
    of_kind,
    until,
    windows,
    written,
)


async def test_the_order_of_what_the_learner_writes(tmp_path):
    found = await Run(tmp_path, await a_server(windows())).to_the_end()

    assert written(found) == [
        "checkpoint 0", "weights 0",
        "plan 1", "commit 1", "weights 1",
        "plan 2", "commit 2", "weights 2", "checkpoint 2",
        "plan 3", "commit 3", "weights 3",
        "plan 4", "commit 4", "weights 4", "checkpoint 4",
    ]  # fmt: skip
    commits = of_kind(found, StepCommitted)
    assert [c.version for c in commits] == [1, 2, 3, 4]
    assert len({c.digest for c in commits}) == 4
    assert [p.version for p in of_kind(found, StepPlanned)] == [0, 1, 2, 3]
    assert [p.groups[0].staleness for p in of_kind(found, StepPlanned)] == [0, 1, 2, 3]
    assert commits[0].metrics["signal_groups"] == 2
    assert {"seconds_train", "seconds_wait", "tokens_per_s", "kl"} <= commits[0].metrics.keys()
    for published, commit in zip(of_kind(found, WeightsPublished)[1:], commits, strict=True):
        assert published.digest == commit.digest
    cursors = [c.cursor for c in of_kind(found, CheckpointWritten)]
    assert cursors == [0, 4, 8]
    kept = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert kept == ["step-00000002-v00000002", "step-00000004-v00000004"]


async def test_a_second_learner_on_the_same_run_is_refused(tmp_path):
    server = await a_server(windows())
    stopped = HeldBus(server, "r", kind="step_planned")
    first = asyncio.create_task(Run(tmp_path, server).live(stopped))
    await until(server, lambda found: of_kind(found, WeightsPublished))
    with pytest.raises(Crash):
        await Run(tmp_path, server).live(
            DyingBus(server, "r", kind="step_planned", count=1, after=True)
        )

    stopped.released.set()

    with pytest.raises(Replaced, match="step_planned"):
        await first
    assert len(of_kind(await events(server), StepPlanned)) == 1


async def test_constant_rewards_leave_the_weights_unchanged_to_the_bit(tmp_path):
    server = await a_server(windows(rewards=(1.0, 1.0)))

    found = await Run(tmp_path, server).to_the_end()

    commits = of_kind(found, StepCommitted)
    assert [(c.status, c.reason, c.version) for c in commits] == [("skipped", "no_signal", 0)] * 4
    assert {c.digest for c in commits} == {of_kind(found, WeightsPublished)[0].digest}
    assert [c.metrics["signal_groups"] for c in commits] == [0] * 4
    assert [[d.reason for d in c.dropped] for c in commits] == [["no_signal"] * 2] * 4


async def test_a_step_with_a_gradient_that_is_not_finite_is_skipped_with_an_incident(tmp_path):
    batches = windows()
    batches[1] = windows(advantages=(3e38, -3e38))[1]
    server = await a_server(batches)

    found = await Run(tmp_path, server).to_the_end()

    commits = of_kind(found, StepCommitted)
    assert [(c.status, c.version) for c in commits] == [
        ("trained", 1), ("skipped", 1), ("trained", 2), ("trained", 3),
    ]  # fmt: skip
    assert commits[1].digest == commits[0].digest
    assert [d.reason for d in commits[1].dropped] == ["nonfinite"] * 2
    assert [(e.kind, e.detail) for e in found if e.KIND == "incident"] == [
        ("step_skipped", "step 2: nonfinite")
    ]


async def test_stale_groups_are_swept_in_the_plan_and_an_empty_step_is_skipped(tmp_path):
    server = await a_server(windows())

    found = await Run(tmp_path, server, max_staleness=1).to_the_end()

    plans, commits = of_kind(found, StepPlanned), of_kind(found, StepCommitted)
    assert [len(p.groups) for p in plans] == [2, 2, 0, 0]
    assert [[(d.reason, d.staleness) for d in p.dropped] for p in plans[2:]] == [
        [("stale", 2)] * 2
    ] * 2
    assert [(c.status, c.reason) for c in commits[2:]] == [("skipped", "nothing_left")] * 2
    assert commits[3].dropped == ()


async def test_nothing_is_planned_beyond_the_last_step_or_after_the_end(tmp_path):
    server = await a_server(windows(6))
    found = await Run(tmp_path, server).to_the_end()
    assert [p.step for p in of_kind(found, StepPlanned)] == [1, 2, 3, 4]

    # A learner started after the end adds nothing.
    assert written(await Run(tmp_path, server).to_the_end()) == written(found)


async def test_an_engine_that_disagrees_is_refused_before_anything_is_planned(tmp_path):
    server = await a_server(windows())

    with pytest.raises(NotIdentical, match=r"identity_band 0\.02.*Likely cause: .*weights"):
        await Run(tmp_path, server, identity_band=None).live()

    found = await events(server)
    assert of_kind(found, StepPlanned) == []
    assert [e.kind for e in of_kind(found, Incident)] == ["not_identical"]
