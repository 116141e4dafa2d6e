"""Ctrl-C ends a run cleanly, on services of the command's own."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ops.services import is_alive
from tests.e2e.cluster import Cluster

INTERRUPTED = 130
END_LIMIT_S = 20.0


def start(run: Cluster, *asked: str) -> subprocess.Popen[str]:
    """`sluice run` with embedded NATS and Postgres, in the background."""
    environment = {
        name: value
        for name, value in run.environment.items()
        if name not in ("SLUICE_NATS__URL", "SLUICE_STORE__URL")
    }
    with (run.directory / "run.log").open("a") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "ops.cli", "run", *asked],
            cwd=run.directory,
            env=environment,
            stdout=log,
            stderr=log,
            text=True,
        )


def step_of(run: Cluster, process: subprocess.Popen[str]) -> int:
    """Steps committed so far, from the learner's log."""
    assert process.poll() is None, (run.directory / "run.log").read_text()
    log = run.run_dir / "logs" / "learner-0.log"
    return log.read_text().count('"step committed"') if log.exists() else 0


def pids_of(path: Path) -> list[int]:
    return [pid for pids in json.loads(path.read_text()).values() for pid in pids]


def left_of(pids: list[int], limit_s: float = 5.0) -> list[int]:
    """Processes that are still there after a moment."""
    deadline = time.monotonic() + limit_s
    while (left := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def test_ctrl_c_ends_a_run_in_order(start_run: Callable[..., Cluster]):
    run = start_run("interrupted", steps=1000, extra="[policy]\nadmit = []")
    process = start(run, str(run.config))
    try:
        deadline = time.monotonic() + 180
        while step_of(run, process) < 2:
            assert time.monotonic() < deadline, (run.directory / "run.log").read_text()
            time.sleep(0.2)
        pids = pids_of(run.run_dir / "pids.json")
        assert len(pids) >= 9  # supervisor, six roles, two services

        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=END_LIMIT_S) == INTERRUPTED
    finally:
        process.kill()
        process.wait(timeout=10)

    assert left_of(pids) == []
    assert pids_of(run.run_dir / "pids.json") == []
    summary = json.loads((run.run_dir / "summary.json").read_text())
    assert summary["status"] == "stopped"
    assert 2 <= summary["steps"] < 1000
    assert len(summary["proofs"]) == 9
    assert all(summary["proofs"].values()), summary["proofs"]
    assert (run.run_dir / "report.html").exists()
