"""A learner that dies at the worst moments costs a redo, and nothing else."""

import signal
from collections.abc import Callable

import pytest

from tests.e2e.cluster import LIGHT, Cluster

STEPS = 4
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


@pytest.mark.parametrize(("point", "again"), POINTS.values(), ids=POINTS.keys())
def test_a_learner_redoes_its_steps_to_the_same_weights(
    point: str, again: list[int], start_run: Callable[..., Cluster]
):
    # No checkpoint between the warm-up and the death, so that step 1 is redone too, and compared.
    run = start_run("killed", steps=STEPS, checkpoint_every=3)
    run.start(LIGHT, "rollout")
    run.start("learner", dying=point)
    assert run.wait_exit("learner", limit_s=120) == -signal.SIGKILL
    first_life = {one["step"] for one in run.events("learner") if one["event"] == "step committed"}

    run.start("learner")
    run.wait_end()

    assert run.status() == "finished"
    assert run.proofs() == {}
    assert first_life == {1}
    steps = run.query(
        "select step, status, weights_version, digest from learner_step order by step"
    )
    assert [(row["step"], row["status"]) for row in steps] == [
        (step, "trained") for step in range(1, STEPS + 1)
    ]
    redone = {
        one["step"]: one["digest"] for one in run.events("learner") if one["event"] == "step redone"
    }
    assert sorted(redone) == again
    assert redone.items() <= {row["step"]: row["digest"] for row in steps}.items()
    weights = run.query("select version, digest from weights order by version")
    assert [row["version"] for row in weights] == list(range(STEPS + 1))
    assert [row["digest"] for row in weights[1:]] == [row["digest"] for row in steps]
    assert run.query("select kind, detail from incident") == []
