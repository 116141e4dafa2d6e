"""How a run is shown: the ledger's fold, the plain line, and which role is named as the one waited for."""

import io
from typing import Any

from broker.bus import LogState
from broker.messages import (
    CheckpointWritten,
    DroppedGroup,
    EvaluationFinished,
    Event,
    Incident,
    MixtureShare,
    MixtureUpdated,
    PlannedGroup,
    ReaderAdvanced,
    RunDraining,
    RunEnded,
    RunStarted,
    StepCommitted,
    StepPlanned,
)
from broker.topology import Log
from ops import live_table
from ops.asking import Heard
from ops.progress import (
    PlainDisplay,
    Pulse,
    clock,
    plain_line,
    queue_depths,
    role_lines,
    silent_roles,
    waited_for,
)
from ops.view import RunView
from tests.builders import AT_US, WRITER

SECOND = 1_000_000


def at(kind: type[Event], second: float = 0, /, **fields: object) -> Event:
    return kind.model_validate(
        {"writer_id": WRITER, "at_us": AT_US + round(second * SECOND), **fields}
    )


def started(second: float = 0) -> Event:
    return at(
        RunStarted,
        second,
        name="r",
        config="{}",
        config_sha256="0",
        seed=0,
        versions={},
        resumed=False,
    )


def committed(step: int, second: float, **metrics: float) -> Event:
    return at(
        StepCommitted,
        second,
        step=step,
        status="trained",
        version=step,
        digest="d",
        metrics=metrics,
    )


def evaluated(version: int, score: float | None, benchmark: str = "add") -> Event:
    return at(
        EvaluationFinished, version=version, step=version, benchmark=benchmark, items=2, score=score,
        missing=(), scores=(),
    )  # fmt: skip


def folded(*events: Event) -> RunView:
    view = RunView()
    for sequence, event in enumerate(events, 1):
        view.apply(event, sequence)
    return view


def status(role: str, *waits: str, **facts: Any) -> dict[str, Any]:
    told = [{"for": wait, "since_s": 1.0, "limit_s": None} for wait in waits]
    return {"role": role, "pid": 7, "host": "h", "heartbeat_age_s": 0.1, "waits": told, **facts}


def a_run() -> RunView:
    planned = at(
        StepPlanned, 11, step=1, version=0, cursor=9,
        groups=(PlannedGroup(group_id="g1", domain="add", stream_seq=1, staleness=1),),
        dropped=(DroppedGroup(group_id="g2", stream_seq=2, reason="stale", staleness=3),),
    )  # fmt: skip
    metrics = {"groups": 4.0, "generations": 32.0, "reward_mean": 0.5, "reward/add": 0.5}
    share = MixtureShare(
        domain="add", target=1.0, requested=9, generated=7, admitted=4, trained=0, reward_mean=None,
        abs_advantage_mean=None, slope=None,
    )  # fmt: skip
    mixture = at(
        MixtureUpdated, update_no=1, mixer="static", window=1, step=0, request_seq=9, cut=7, domains=(share,),
        reason="",
    )  # fmt: skip
    return folded(
        started(),
        mixture,
        at(CheckpointWritten, 10, step=0, version=0, uri="u", digest="d", cursor=0),
        evaluated(0, 0.25),
        planned,
        committed(1, 12, **metrics),
        committed(2, 14, **metrics),
        committed(3, 16, **metrics),
    )


def test_the_line_tells_step_time_left_reward_staleness_groups_speed_and_queues():
    pulse = Pulse((status("learner", "window 4"),), {"rollout": 3, "verifier": 1})

    line = plain_line(a_run(), pulse, steps=13, now_us=AT_US + 20 * SECOND)

    for part in (
        "[0:20] step 3/13", "0:20 left", "reward add 0.50", "staleness ≤ 1",
        "12 trained, 4 dropped (filtered 3, stale 1)",
        "16 samples/s", "rollout 3", "verifier 1", "waiting for rollout",
    ):  # fmt: skip
        assert part in line


def test_before_the_first_checkpoint_the_line_tells_how_far_the_warm_up_is():
    learner = status("learner", "warm-up", warmup_step=30, warmup_steps=300, warmup_loss=1.5)

    line = plain_line(folded(started()), Pulse((learner,)), steps=9, now_us=AT_US)

    assert "warm-up step 30/300, loss 1.5" in line
    assert "waiting for learner" in line


def test_a_run_that_ends_says_why_and_what_the_store_still_lacks():
    ending = at(
        RunEnded, reason="all", status="finished", last_sequences={"REQUESTS": 40, "VERIFIED": 7}
    )
    draining = at(RunDraining, reason="12 steps", open_groups=())
    caught_up = at(ReaderAdvanced, reader="recorder", log="REQUESTS", sequence=40)

    before = plain_line(folded(started(), draining), Pulse(), steps=3, now_us=AT_US)
    view = folded(
        started(), at(CheckpointWritten, step=0, version=0, uri="u", digest="d", cursor=0), ending
    )
    view.apply(caught_up, 4)
    after = plain_line(view, Pulse(), steps=3, now_us=AT_US)

    assert "starting" in before
    assert "ended (finished)" in after
    assert view.recorder_behind() == {"VERIFIED": 7, "LEDGER": 3}


def test_a_resumed_run_is_live_again_and_keeps_its_history():
    view = a_run()
    view.apply(at(RunEnded, reason="", status="stopped", last_sequences={}), 8)

    view.apply(started(100), 9)

    assert view.ended is None
    assert (view.step, view.started_us, view.starts) == (3, AT_US, 2)


def test_a_pause_counts_neither_as_time_nor_against_the_rate():
    """Steps at 12, 14, 16 s; from 16 s to 100 s nothing ran; steps at 102, 104 s."""
    view = a_run()
    view.apply(at(RunEnded, 16, reason="", status="stopped", last_sequences={}), 8)
    view.apply(started(100), 9)
    for step, second in ((4, 102), (5, 104)):
        view.apply(committed(step, second, generations=32.0), 9 + step)

    line = plain_line(view, Pulse(), steps=15, now_us=AT_US + 106 * SECOND)

    for part in ("[0:22] step 5/15", "0:20 left", "16 samples/s"):
        assert part in line


def test_the_learner_is_waited_for_while_it_computes():
    pulse = Pulse(
        (status("learner", "step 4"), status("policy", "verified groups")), {"rollout": 9}
    )

    assert waited_for(pulse) == "learner"


def test_the_longest_queue_is_waited_for_when_the_learner_has_no_window():
    pulse = Pulse((status("learner", "window 4"),), {"rollout": 2, "verifier": 9, "policy": 0})

    assert waited_for(pulse) == "verifier"


def test_the_dispatcher_is_waited_for_when_every_queue_is_empty():
    assert "dispatcher" in waited_for(Pulse((status("learner", "window 4"),), {"rollout": 0}))


def test_a_learner_too_busy_to_answer_is_shown_as_it_was_and_waited_for():
    heard = Heard()
    warming = status("learner", "window 4", warmup_step=30, warmup_steps=300)
    heard.take([warming, status("policy", "verified groups")], 10.0)

    later = Pulse(heard.take([status("policy", "verified groups")], 20.0))
    much_later = Pulse(heard.take([status("policy", "verified groups")], 100.0))

    line = plain_line(folded(started()), later, steps=9, now_us=AT_US)
    assert "warm-up step 30/300" in line
    assert "waiting for learner" in line
    assert silent_roles(much_later.statuses) == silent_roles([status("policy")])


def test_a_missing_learner_is_waited_for():
    assert "learner" in waited_for(Pulse((status("policy", "verified groups"),)))


def test_depths_of_cursor_readers_come_from_what_they_say():
    states = {
        Log.VERIFIED: LogState(1, 50, 50, 1, 9),
        Log.REQUESTS: LogState(1, 9, 9, 1, 9, {"rollout": 4}),
    }
    busy = (status("policy", verified_position=40, window=6), status("learner", "window 4", step=3))
    idle = (status("policy", "verified groups", verified_position=40),)

    assert queue_depths(states, busy) == {"rollout": 4, "policy": 10, "learner": 2}
    assert queue_depths(states, idle)["policy"] == 0


def test_an_evaluation_is_shown_at_once():
    out = io.StringIO()
    display = PlainDisplay(9, out, every_s=1000)
    view = a_run()

    display.show(view, Pulse(), memory_bytes=0)
    display.show(view, Pulse(), memory_bytes=0)
    view.apply(evaluated(3, 0.75), 9)
    display.show(view, Pulse(), memory_bytes=0)

    lines = out.getvalue().splitlines()
    assert lines[0] == "held-out accuracy: add 25 %"
    assert lines[2] == "held-out accuracy: add 25 % → 75 %"
    assert len(lines) == 4


def test_an_evaluation_with_missing_items_is_no_zero():
    assert "add -" in plain_accuracy(folded(evaluated(0, None)))


def plain_accuracy(view: RunView) -> str:
    out = io.StringIO()
    PlainDisplay(9, out).show(view, Pulse(), memory_bytes=0)
    return out.getvalue()


def test_the_table_shows_the_same_figures():
    from rich.console import Console

    console = Console(width=140, record=True, file=io.StringIO())
    view = a_run()
    view.apply(at(Incident, kind="sample_skipped", role="dispatcher", detail="[red]not markup"), 8)

    console.print(
        live_table.render(
            view,
            Pulse((), {"rollout": 3}),
            steps=13,
            title="demo",
            now_us=AT_US + 20 * SECOND,
            memory_bytes=2**30,
        )
    )

    text = console.export_text()
    for part in (
        "step 3 of 13",
        "0:20 left",
        "add",
        "25 %",
        "12 trained",
        "1.00 GiB",
        "[red]not markup",
    ):
        assert part in text


def test_each_process_says_what_it_waits_for_and_for_how_long():
    lines = role_lines([status("rollout", "weights 7"), status("learner")])

    assert "learner pid 7 on h: works" in lines[0]
    assert "waits for weights 7 (1 s)" in lines[1]


def test_times_read_as_minutes_and_hours():
    assert [clock(s) for s in (0, 59.6, 3600, 3725)] == ["0:00", "1:00", "1:00:00", "1:02:05"]
