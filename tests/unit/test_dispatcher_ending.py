"""When a run drains, what it still waits for, and what an evaluation says."""

import pytest

from broker.messages import Incident, RunDraining, RunStarted
from tests.builders import AT_US, WRITER, a_sample
from tests.dispatcher_world import a_run
from workers.dispatcher.ending import Ending, awaited, drain_limit_s, why_drain
from workers.dispatcher.evaluation import Evaluations, conclude, item_id, parse_item_id
from workers.dispatcher.groups import Requested
from workers.dispatcher.opening import differing_keys
from workers.dispatcher.state import State


def a_state(**changes: object) -> State:
    state = State(max_attempts=3)
    for name, value in changes.items():
        setattr(state, name, value)
    return state


def test_a_run_drains_at_its_last_step():
    assert why_drain(a_state(step=2), a_run(steps=3), exhausted=False) is None
    ending = why_drain(a_state(step=3), a_run(steps=3), exhausted=False)
    assert ending == Ending("finished", "3 steps committed")


def test_dead_groups_end_a_run_only_when_enough_come_in_a_row():
    run = a_run(groups_per_step=4, no_progress_steps=2)
    state = a_state()
    state.silence.dead_groups = 7
    assert why_drain(state, run, exhausted=False) is None

    state.silence.dead_groups = 8
    state.silence.dead_reasons.update({"filtered:x": 5, "failed: broken": 3})

    ending = why_drain(state, run, exhausted=False)
    assert ending is not None
    assert ending.status == "no_progress"
    assert "5 filtered:x, 3 failed: broken" in ending.detail


def test_silent_steps_end_a_run():
    state = a_state()
    state.silence.silent_steps = 2

    ending = why_drain(state, a_run(no_progress_steps=2), exhausted=False)

    assert ending is not None
    assert ending.status == "no_progress"


def test_a_stop_asked_for_before_the_run_was_resumed_does_not_count():
    state = a_state()
    asked = Incident(writer_id=WRITER, at_us=AT_US, kind="stop_requested", role="cli", detail="")
    start = RunStarted(
        writer_id=WRITER, at_us=AT_US, name="n", config="{}", config_sha256="", seed=0, versions={}
    )
    state.apply_ledger(asked, 1)
    assert why_drain(state, a_run(), exhausted=False) is not None

    state.apply_ledger(start, 2)

    assert why_drain(state, a_run(), exhausted=False) is None


def test_a_second_request_to_stop_hurries_the_end():
    state = a_state()
    asked = Incident(writer_id=WRITER, at_us=AT_US, kind="stop_requested", role="cli", detail="")
    state.apply_ledger(asked, 1)
    state.apply_ledger(
        RunDraining(writer_id=WRITER, at_us=AT_US, reason="stopped: x", open_groups=()), 2
    )
    assert not state.life.hurried

    state.apply_ledger(asked, 3)

    assert state.life.hurried


@pytest.mark.parametrize("status", ["finished", "stopped", "no_progress"])
def test_the_reason_for_draining_keeps_its_status_on_the_way(status: str):
    ending = Ending(status, "why: because")  # pyright: ignore[reportArgumentType]

    assert Ending.parse(str(ending)) == ending


def test_groups_in_windows_beyond_the_last_step_are_not_waited_for():
    state, run = a_state(step=3), a_run(steps=3)
    for draw in (1, 2):
        state.groups.requested(Requested(f"{draw:08d}-0-0", draw, draw))
    assert awaited(state, run) == "the ends of 2 groups"

    state.groups.windowed("00000001-0-0")
    assert awaited(state, run) == "the ends of 1 groups"
    state.groups.ended("00000002-0-0", "run_ended")

    assert awaited(state, run) is None


def test_a_window_before_the_last_step_is_waited_for_longer():
    state, run = a_state(step=1), a_run(steps=3, drain_wait_s=10)
    state.groups.requested(Requested("00000001-0-0", 1, 1))
    assert drain_limit_s(state, run) == 20

    state.groups.windowed("00000001-0-0")

    assert awaited(state, run) == "the ends of 1 groups"
    assert drain_limit_s(state, run) == 100


def test_item_ids_are_read_back_even_with_dashes_in_the_benchmark():
    assert item_id(12, "math-hard", 3) == "v000012-math-hard-00003-0"
    assert parse_item_id("v000012-math-hard-00003-0") == (12, "math-hard", 3)


def test_the_first_result_of_an_item_counts_and_none_after_the_end():
    evaluations = Evaluations()
    evaluations.requested(item_id(0, "b", 0), 1)
    evaluations.measured(item_id(0, "b", 0), 1.0)
    evaluations.measured(item_id(0, "b", 0), 0.0)
    assert evaluations.progress(0, "b").scores == {0: 1.0}

    evaluations.finished(0, "b")
    evaluations.measured(item_id(0, "b", 0), 0.0)

    assert evaluations.begun() == []
    assert evaluations.is_finished(0, "b")


@pytest.mark.parametrize(
    ("scores", "score", "missing"),
    [
        ({0: 1.0, 1: 0.5}, 0.75, ()),
        ({0: 1.0, 1: None}, None, ("math:1:2",)),
        ({1: 1.0}, None, ("math:1:1",)),
        ({}, None, ("math:1:1", "math:1:2")),
    ],
)
def test_a_missing_item_makes_the_score_null(
    scores: dict[int, float | None], score: float | None, missing: tuple[str, ...]
):
    samples = [a_sample("math:1:1"), a_sample("math:1:2")]

    found = conclude(4, 9, "b", samples=samples, scores=scores, writer_id=WRITER, at_us=AT_US)

    assert (found.version, found.step, found.items) == (4, 9, 2)
    assert found.score == score
    assert found.missing == missing


def test_only_keys_that_decide_what_is_trained_count_as_differences():
    old = '{"run": {"steps": 1, "seed": 1}, "source": [{"domain": "a"}], "nats": {"url": "x"}}'
    new = (
        '{"run": {"steps": 2, "seed": 1}, "source": [{"domain": "b"}], "evaluation": {"every": 2}}'
    )

    assert differing_keys(old, old) == []
    assert differing_keys(old, new) == ["source"]
