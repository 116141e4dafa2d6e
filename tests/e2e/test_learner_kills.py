"""A learner that dies at the worst moments costs a redo, and nothing else."""

import signal
from collections.abc import Callable

import pytest

from tests.e2e.cluster import LIGHT, Cluster

STEPS = 4
# No checkpoint between the warm-up and the deaths, so that step 1 is redone too, and compared.
OPTIONS = {"steps": STEPS, "checkpoint_every": 3}
POINTS = {
    "before it plans step 2": ("before:step_planned:2", [1]),
    "after it planned step 2": ("after:step_planned:2", [1, 2]),
    "when it has trained step 2 and not committed it": ("before:step_committed:2", [1, 2]),
    "when step 2 is committed and its weights are not published": (
        "after:step_committed:2",
        [1, 2],
    ),
    "when the weights of step 2 are published": ("after:weights_published:3", [1, 2]),
}
"""When it dies, and the steps that its next life must redo."""
ONE_AFTER_THE_OTHER = (
    "before:step_planned:2",
    "after:step_planned:1",
    "before:step_committed:1",
    "after:step_committed:1",
    "after:weights_published:1",
)
"""The same moments, each in the life after the last: numbers count what that life publishes."""


def die(run: Cluster, point: str) -> None:
    run.start("learner", dying=point)
    assert run.wait_exit("learner", limit_s=120) == -signal.SIGKILL


def logged(run: Cluster, event: str) -> list[tuple[int, str]]:
    """(step, weight digest if it tells one) of each such event of all lives."""
    return [
        (one["step"], one.get("digest", ""))
        for one in run.events("learner")
        if one["event"] == event
    ]


def check_complete(run: Cluster) -> None:
    """Every step is trained once, and whoever redid it came to the weights that were committed."""
    assert run.status() == "finished"
    assert run.proofs() == {}
    steps = run.query("select step, status, digest from learner_step order by step")
    assert [(row["step"], row["status"]) for row in steps] == [
        (step, "trained") for step in range(1, STEPS + 1)
    ]
    weights = run.query("select version, digest from weights order by version")
    assert [row["version"] for row in weights] == list(range(STEPS + 1))
    assert [row["digest"] for row in weights[1:]] == [row["digest"] for row in steps]
    assert set(logged(run, "step redone")) <= {(row["step"], row["digest"]) for row in steps}
    assert run.query("select kind, detail from incident") == []


def test_a_learner_that_dies_around_every_publication_of_a_step_takes_it_once(
    start_run: Callable[..., Cluster],
):
    run = start_run("killed", **OPTIONS)
    run.start(LIGHT, "rollout")
    for point in ONE_AFTER_THE_OTHER:
        die(run, point)

    run.start("learner")
    run.wait_end()

    check_complete(run)
    redone = [step for step, _ in logged(run, "step redone")]
    assert redone == [1, *[1, 2] * 4]


@pytest.mark.full
@pytest.mark.parametrize(("point", "again"), POINTS.values(), ids=POINTS.keys())
def test_a_learner_that_dies_once_redoes_its_steps_to_the_same_weights(
    point: str, again: list[int], start_run: Callable[..., Cluster]
):
    run = start_run("killed", **OPTIONS)
    run.start(LIGHT, "rollout")
    die(run, point)
    assert [step for step, _ in logged(run, "step committed")] == [1]

    run.start("learner")
    run.wait_end()

    check_complete(run)
    assert [step for step, _ in logged(run, "step redone")] == again
