"""Every role leaves within 10 s of SIGTERM with nothing lost, and its successor goes on."""

import time
from collections.abc import Callable

from tests.e2e.cluster import ENDLESS, PASSED, ROLES, Cluster


def test_roles_leave_on_sigterm_and_their_successors_go_on(start_run: Callable[..., Cluster]):
    run = start_run("sigterm", **ENDLESS, checkpoint_every=7)
    run.start(*ROLES)
    done = 0
    for role in ROLES:
        run.wait_step(done + 1)
        run.terminate(role)
        done = run.newest_step()
        run.start(role)
    run.wait_step(done + PASSED)

    run.stop()
    assert run.proofs() == {}
    assert run.incidents() == {"stop_requested"}
    for role in ROLES:
        assert run.wait_exit(role, limit_s=20) == 0


def test_a_learner_leaves_in_the_middle_of_its_warm_up(start_run: Callable[..., Cluster]):
    run = start_run("warming", warmup=800)
    run.start("learner")
    deadline = time.monotonic() + 120
    while not any(one["event"] == "warm-up" for one in run.events("learner")):
        assert time.monotonic() < deadline, run.log("learner")
        time.sleep(0.1)

    run.terminate("learner")
