"""What a crash costs the learner: nothing but the time to redo its steps, to the same bytes."""

import asyncio

import pytest
from structlog.testing import capture_logs

from broker.memory import MemoryBus
from broker.messages import (
    Event,
    StepCommitted,
    StepPlanned,
    WeightsPublished,
)
from broker.topology import Log
from learner import redo
from tests.learner_lives import (
    Crash,
    DyingBus,
    Run,
    a_server,
    ended,
    events,
    of_kind,
    outcome,
    started,
    until,
    windows,
    written,
)
from tests.learning import a_group


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> list[Event]:
    """The ledger of a learner that nothing happened to."""

    async def undisturbed() -> list[Event]:
        folder = tmp_path_factory.mktemp("undisturbed")
        return await Run(folder, await a_server(windows())).to_the_end()

    return asyncio.run(undisturbed())


CRASHES = [
    ("checkpoint_written", 1, False),
    ("checkpoint_written", 1, True),
    ("object", 1, True),
    ("weights_published", 1, True),
    ("step_planned", 2, False),
    ("step_planned", 2, True),
    ("object", 3, True),
    ("step_committed", 2, True),
    ("weights_published", 3, True),
    ("checkpoint_written", 2, False),
    ("checkpoint_written", 2, True),
    ("step_planned", 4, True),
    ("step_committed", 4, True),
    ("checkpoint_written", 3, False),
]


async def test_steps_are_redone_at_the_rate_they_were_taken_at(tmp_path):
    """A resumed run may be longer, and the schedule of its learning rate with it."""
    server = await a_server(windows(5))
    with pytest.raises(Crash):
        await Run(tmp_path, server, schedule="linear").live(
            DyingBus(server, "r", kind="step_committed", count=3, after=True)
        )

    found = await Run(tmp_path, server, schedule="linear", steps=5).to_the_end()

    rates = [step.metrics["learning_rate"] for step in of_kind(found, StepCommitted)]
    assert rates == [pytest.approx(1e-2 * left) for left in (1, 3 / 4, 2 / 4, 2 / 5, 1 / 5)]


async def test_another_band_of_the_identity_check_is_no_other_environment(tmp_path):
    server = await a_server(windows())
    with pytest.raises(Crash):
        await Run(tmp_path, server).live(
            DyingBus(server, "r", kind="step_planned", count=3, after=True)
        )

    with capture_logs() as told:
        await Run(tmp_path, server, identity_band=1e8).to_the_end()

    said = [event["event"] for event in told]
    assert "checkpoint loaded" in said
    assert not [event for event in said if "another environment" in event]


@pytest.mark.parametrize(("kind", "count", "after"), CRASHES)
async def test_a_crash_anywhere_changes_neither_weights_nor_ledger(
    expected, tmp_path, kind, count, after
):
    server = await a_server(windows())
    with pytest.raises(Crash):
        await Run(tmp_path / "b", server).live(
            DyingBus(server, "r", kind=kind, count=count, after=after)
        )

    found = await Run(tmp_path / "b", server).to_the_end()

    assert outcome(found) == outcome(expected)
    assert written(found) == written(expected)
    assert not [e for e in found if e.KIND == "incident"]


async def test_a_learner_that_dies_after_every_event_ends_with_the_same_weights(expected, tmp_path):
    server = await a_server(windows())
    lives = 0
    for kind in (
        "checkpoint_written",
        "weights_published",
        *["step_planned", "step_committed"] * 4,
    ):
        lives += 1
        with pytest.raises(Crash):
            await Run(tmp_path / "b", server).live(
                DyingBus(server, "r", kind=kind, count=1, after=True)
            )

    found = await Run(tmp_path / "b", server).to_the_end()

    assert lives == 10
    assert outcome(found) == outcome(expected)
    assert written(found) == written(expected)


async def test_a_redo_that_comes_out_differently_halts_and_says_where(tmp_path):
    server = await a_server(windows())
    with pytest.raises(Crash):
        await Run(tmp_path, server).live(
            DyingBus(server, "r", kind="weights_published", count=2, after=True)
        )

    # Another weight decay stands for other hardware.
    with pytest.raises(redo.RedoMismatch, match=r"step 1: committed weights .* redone"):
        await Run(tmp_path, server, weight_decay=0.5).live()

    found = await events(server)
    committed = of_kind(found, StepCommitted)[0].digest
    (incident,) = [e for e in found if e.KIND == "incident"]
    assert incident.kind == "redo_mismatch"
    assert committed in incident.detail


@pytest.mark.parametrize("planned", [False, True])
async def test_a_redo_that_comes_out_differently_may_be_published_as_the_next_version(
    tmp_path, planned
):
    server = await a_server(windows())
    kind, count = ("step_planned", 2) if planned else ("weights_published", 2)
    with pytest.raises(Crash):
        await Run(tmp_path, server).live(DyingBus(server, "r", kind=kind, count=count, after=True))

    changes = {"weight_decay": 0.5, "on_mismatch": "republish"}
    found = await Run(tmp_path, server, **changes).to_the_end()

    commits, published = of_kind(found, StepCommitted), of_kind(found, WeightsPublished)
    assert [c.step for c in commits] == [1, 2, 3, 4]
    assert [w.version for w in published] == list(range(len(published)))
    assert published[1].digest == commits[0].digest
    assert len({w.digest for w in published}) == len(published)
    by_version = {w.version: w.digest for w in published}
    assert all(by_version[c.version] == c.digest for c in commits)
    # A later life begins at the checkpoint made then, and redoes nothing differently.
    again = await Run(tmp_path, server, **changes).to_the_end()
    assert len([e for e in again if e.KIND == "incident"]) == 1


@pytest.mark.parametrize("weights", ["object", "directory"])
async def test_committed_weights_that_cannot_be_made_again_are_published_as_stored(
    tmp_path, weights
):
    server = await a_server(windows())
    with pytest.raises(Crash):
        await Run(tmp_path, server, weights=weights).live(
            DyingBus(server, "r", kind="step_committed", count=1, after=True)
        )

    changes = {"weight_decay": 0.5, "on_mismatch": "republish", "weights": weights}
    found = await Run(tmp_path, server, **changes).to_the_end()

    committed = of_kind(found, StepCommitted)[0]
    _, stored, again, *_ = of_kind(found, WeightsPublished)
    assert (stored.version, stored.digest) == (committed.version, committed.digest)
    assert (again.version, again.step) == (committed.version + 1, committed.step)
    assert again.digest != committed.digest


async def test_a_damaged_checkpoint_is_passed_over_for_an_older_one(expected, tmp_path):
    server = await a_server(windows())
    with pytest.raises(Crash):
        await Run(tmp_path / "b", server).live(
            DyingBus(server, "r", kind="step_planned", count=3, after=True)
        )
    (tmp_path / "b/checkpoints/step-00000002-v00000002/model.safetensors").write_bytes(b"x")

    found = await Run(tmp_path / "b", server).to_the_end()

    assert outcome(found) == outcome(expected)
    assert [e.kind for e in found if e.KIND == "incident"] == ["checkpoint_unusable"]


async def test_without_any_checkpoint_the_run_is_redone_from_the_warm_up(expected, tmp_path):
    server = await a_server(windows())
    with pytest.raises(Crash):
        await Run(tmp_path / "b", server).live(
            DyingBus(server, "r", kind="step_planned", count=3, after=True)
        )

    found = await Run(tmp_path / "c", server).to_the_end()

    assert outcome(found)[: len(outcome(expected))] == outcome(expected)


async def test_a_purged_group_that_a_redo_needs_is_named(tmp_path):
    server = await a_server(windows())
    with pytest.raises(Crash):
        await Run(tmp_path, server).live(
            DyingBus(server, "r", kind="step_planned", count=1, after=True)
        )
    await MemoryBus(server, "r").purge(Log.ANNOTATED, 1)

    with pytest.raises(redo.LogIncomplete, match=r"step 1: ANNOTATED 1 .* 00000001-0-0"):
        await Run(tmp_path, server).live()


async def test_a_stop_ends_the_learner_soon_and_the_next_life_goes_on(expected, tmp_path):
    server = await a_server(windows()[:2])
    run = Run(tmp_path / "b", server)
    life = asyncio.create_task(run.live())
    await until(server, lambda found: len(of_kind(found, StepCommitted)) == 2)
    run.stop.set()
    async with asyncio.timeout(3):
        await life
    for batch in windows()[2:]:
        await MemoryBus(server, "r").publish_batch(batch)

    found = await Run(tmp_path / "b", server).to_the_end()

    assert outcome(found) == outcome(expected)


async def test_a_step_planned_when_the_run_ended_is_not_trained_after_it_is_resumed(tmp_path):
    server = await a_server(windows())
    with pytest.raises(Crash):
        await Run(tmp_path, server).live(
            DyingBus(server, "r", kind="step_planned", count=2, after=True)
        )
    bus = MemoryBus(server, "r")
    await bus.publish(ended(VERIFIED=5))
    await bus.publish(started(resumed=True))
    # The retries come in the window after those that the policy had closed before the end.
    for window in (5, 6):
        await bus.publish(
            a_group(f"000000{window}1-0-0", window=window, window_size=1, verified_seq=6)
        )

    found = await Run(tmp_path, server, steps=6).to_the_end()

    commits = of_kind(found, StepCommitted)
    assert [(c.step, c.status, c.reason) for c in commits] == [
        (1, "trained", ""),
        (2, "skipped", "run_ended"),
        (3, "skipped", "nothing_left"),
        (4, "skipped", "nothing_left"),
        (5, "trained", ""),
        (6, "trained", ""),
    ]
    assert [d.reason for c in commits[1:2] for d in c.dropped] == ["run_ended"] * 2
    plans = of_kind(found, StepPlanned)
    assert [d.reason for p in plans[2:4] for d in p.dropped] == ["run_ended"] * 4
