"""Steps that come out differently when they are redone: the run halts, or goes on from the redone weights."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.e2e.cluster import LIGHT, Cluster

REFUSED = 2
OTHER_HARDWARE = Path(__file__).with_name("other_hardware.py")
STEPS = 4


def start_elsewhere(run: Cluster, *overrides: str) -> None:
    environment = {**run.environment, "SLUICE_PARENT": str(os.getpid())}
    with (run.directory / "learner.log").open("ab") as log:
        run.processes["learner"] = subprocess.Popen(
            [sys.executable, str(OTHER_HARDWARE), str(run.config), *overrides],
            cwd=run.directory, stdout=log, stderr=log, env=environment,
        )  # fmt: skip


def test_a_redo_on_other_hardware_halts_or_is_published_as_a_version_of_its_own(
    start_run: Callable[..., Cluster],
):
    # The version told for step 2 once more makes all that waits a version older.
    run = start_run("elsewhere", steps=STEPS, checkpoint_every=10, run_extra="max_staleness = 4")
    run.start(LIGHT, "rollout")
    run.start("learner", dying="after:step_committed:2")
    assert run.wait_exit("learner", limit_s=120) == -signal.SIGKILL

    start_elsewhere(run)
    halted = run.wait_exit("learner", limit_s=60)
    reason = run.events("learner")[-1]["reason"]
    start_elsewhere(run, "learner.on_mismatch=republish")
    run.wait_end()

    first, second, *_ = run.query("select digest from learner_step order by step")
    assert halted == REFUSED
    assert reason.startswith(f"step 1: committed weights {first['digest']}, redone ")
    assert "learner.on_mismatch is halt" in reason
    assert run.status() == "finished"
    assert run.proofs() == {}
    told = [row["detail"] for row in run.query("select detail from incident order by event_id")]
    assert [detail.split(":")[0] for detail in told] == ["step 1", "step 1", "step 2"]
    assert f"committed weights {second['digest']}" in told[-1]
    # Committed steps stay, and version 2 is told as it was stored. Version 3 is step 2 once more, and
    # step 3 starts from it.
    steps = run.query("select step, start_version, weights_version from learner_step order by step")
    assert [tuple(row.values()) for row in steps] == [(1, 0, 1), (2, 1, 2), (3, 3, 4), (4, 4, 5)]
    weights = run.query("select version, step, digest from weights order by version")
    assert [(row["version"], row["step"]) for row in weights][-4:] == [
        (2, 2),
        (3, 2),
        (4, 3),
        (5, 4),
    ]
    assert weights[-4]["digest"] == second["digest"]
    assert weights[-3]["digest"] != second["digest"]
    assert told[-1].endswith(weights[-3]["digest"])
