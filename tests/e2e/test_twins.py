"""A single writer that is stopped is replaced by its standby, and is refused when it comes back."""

import signal
import time
from collections.abc import Callable

from tests.e2e.cluster import ENDLESS, Cluster

REPLACED = 3
START_LIMIT_S = 120.0
TAKE_OVER_LIMIT_S = 12.0
"""A lease is 10 s old before anybody takes it; a standby looks twice a second."""
LEAVE_LIMIT_S = 15.0
TWINS = {role: (role, f"{role}#2") for role in ("learner", "policy", "dispatcher")}


def test_stopped_writers_are_replaced_and_refused_when_they_come_back(
    start_run: Callable[..., Cluster],
):
    run = start_run("twins", **ENDLESS, checkpoint_every=5)
    run.start(*(name for pair in TWINS.values() for name in pair), "rollout", "verifier,recorder")
    wait_for_standbys(run)
    run.wait_step(1)

    for role, pair in TWINS.items():
        holder, standby = sorted(pair, key=lambda name: not happened(run, name, "lease_held"))
        run.processes[holder].send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        wait_for(run, standby, "lease_held", TAKE_OVER_LIMIT_S)
        assert time.monotonic() - stopped > 5, "the lease of a process that lives was taken at once"
        run.wait_step(run.newest_step() + 1, limit_s=60)

        run.processes[holder].send_signal(signal.SIGCONT)
        assert run.wait_exit(holder, limit_s=LEAVE_LIMIT_S) == REPLACED
        (refused,) = [one for one in run.events(holder) if one["event"] == "worker_replaced"]
        assert role in refused["reason"]

    run.start("policy#3")
    wait_until_standby(run, "policy")
    run.stop()
    assert run.wait_exit("policy#3", limit_s=60) == 0, "a standby leaves when the run has ended"
    assert run.proofs() == {}
    assert run.incidents() == {"stop_requested"}


def wait_for_standbys(run: Cluster) -> None:
    """Until one of each pair works, and the other one says what it waits for."""

    for role, pair in TWINS.items():
        deadline = time.monotonic() + START_LIMIT_S
        while sum(happened(run, name, "lease_held") for name in pair) != 1:
            assert time.monotonic() < deadline, f"nobody works at {role}"
            time.sleep(0.2)
        wait_until_standby(run, role)


def wait_until_standby(run: Cluster, role: str) -> None:
    """Until somebody says that it waits for the role's lease."""
    deadline = time.monotonic() + START_LIMIT_S
    while f"the lease of {role}" not in run.waits():
        assert time.monotonic() < deadline, f"no standby of {role}"
        time.sleep(0.2)


def happened(run: Cluster, name: str, event: str) -> bool:
    return any(one["event"] == event for one in run.events(name))


def wait_for(run: Cluster, name: str, event: str, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not happened(run, name, event):
        assert time.monotonic() < deadline, f"{name}: no {event} in {limit_s} s\n{run.log(name)}"
        time.sleep(0.1)
