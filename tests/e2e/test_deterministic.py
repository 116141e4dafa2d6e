"""Deterministic mode: whatever dies on the way, one seed gives one model, one record of decisions."""

import random
import signal
import time
from collections.abc import Callable

import pytest

from learner.checkpoint import MODEL, OPTIMIZER
from learner.export import checkpoint_paths
from store.models import TABLES
from tests.e2e.cluster import LIGHT, Cluster

STEPS, SEED = 4, 2
OPTIONS = {
    "steps": STEPS,
    "eval_items": 2,
    "warmup": 100,
    "run_extra": "max_staleness = 0\ndeterministic = true",
}
LAST_WORDS = {
    "dispatcher": ("group_requested", 16),
    "rollout": ("group_generated", 16),
    "verifier": ("group_verified", 16),
    "policy": ("group_annotated", 16),
    "learner": ("step_committed", STEPS - 1),
}
"""Role -> what it publishes around its death, and how often it surely does so in a run."""
LIMIT_S = 200.0

NOT_COMPARED = {"incident", "recorder_cursor", "recorder_gap", "run_end"}
SEQUENCES = {
    "event_id", "last_event_id", "request_seq", "requests_seq", "generated_seq", "verified_seq",
    "annotated_seq", "planned_seq", "committed_seq", "cursor_seq", "stream_seq", "cut",
}  # fmt: skip
NAMES = {"run_id", "name", "config", "uri", "worker"}
"""Of the run and its folder, and of processes."""
TIMES = {"latency_ms", "seconds_train", "seconds_wait", "tokens_per_s"}


def record_of(run: Cluster) -> dict[str, list[tuple]]:
    """Every table without what may differ: times, sequences, names, incidents."""
    found = {}
    for name in sorted(TABLES.keys() - NOT_COMPARED):
        if "run_id" not in TABLES[name].columns:
            continue  # what all runs share
        clocks = {
            column.name
            for column in TABLES[name].columns
            if getattr(column.type, "timezone", False)
        }
        left_out = clocks | SEQUENCES | NAMES | TIMES
        query = f"SELECT to_jsonb(t) AS row FROM {name} AS t WHERE run_id = %(run)s"
        rows = [row["row"] for row in run.query(query, run=run.run)]
        found[name] = sorted(str(comparable(row, left_out)) for row in rows)
    # Whether anybody saw a group in a state that it only passed through is a matter of time.
    found["group_count"] = [row for row in found["group_count"] if "'groups': 0" not in row]
    return found


def comparable(value: object, left_out: set[str]) -> object:
    if isinstance(value, dict):
        return {k: comparable(v, left_out) for k, v in sorted(value.items()) if k not in left_out}
    return value


def newest_checkpoint(run: Cluster) -> tuple[bytes, bytes]:
    """Weights and optimizer."""
    paths = checkpoint_paths(run.run_dir)
    newest = paths[max(paths)]
    return (newest / MODEL).read_bytes(), (newest / OPTIMIZER).read_bytes()


def last_words(seed: int) -> dict[str, str]:
    """Role -> the point at which it dies, as `dying_worker` reads it."""
    rng = random.Random(seed)
    return {
        role: f"{rng.choice(('before', 'after'))}:{kind}:{rng.randint(1, often)}"
        for role, (kind, often) in LAST_WORDS.items()
    }


def live_and_die(run: Cluster, points: dict[str, str]) -> None:
    """Every role of `points` dies once, at its point, and is started again."""
    run.start("recorder")
    for role, point in points.items():
        run.start(role, dying=point)
    alive, deadline = set(points), time.monotonic() + LIMIT_S
    while alive:
        assert time.monotonic() < deadline, f"still alive after {LIMIT_S} s: {alive}"
        for role in list(alive):
            code = run.processes[role].poll()
            if code is not None:
                assert code == -signal.SIGKILL, f"{role} at {points[role]}:\n{run.log(role)}"
                alive.discard(role)
                run.start(role)
        time.sleep(0.1)


def compare(undisturbed: Cluster, killed: Cluster) -> None:
    for run in (undisturbed, killed):
        run.wait_end(limit_s=LIMIT_S)
        assert run.status() == "finished"
        assert run.proofs() == {}
    assert newest_checkpoint(killed) == newest_checkpoint(undisturbed)
    expected, found = record_of(undisturbed), record_of(killed)
    for table in expected:
        assert found[table] == expected[table], table
    assert sum("'trained'" in row for row in expected["learner_step"]) >= STEPS - 1
    assert all(expected[name] for name in ("annotation", "generation", "mixture", "weights"))


def test_a_run_killed_five_times_ends_as_one_that_nothing_happened_to(
    start_run: Callable[..., Cluster],
):
    undisturbed, killed = start_run("quiet", **OPTIONS), start_run("killed", **OPTIONS)
    # The deaths are mostly waited out, lease by lease: meanwhile the other run has the machine.
    undisturbed.start(LIGHT, "rollout", "learner")

    live_and_die(killed, last_words(SEED))

    compare(undisturbed, killed)


@pytest.mark.full
@pytest.mark.timeout(1800)  # eleven runs, ten of them one after the other
def test_no_seed_of_deaths_changes_what_comes_out(start_run: Callable[..., Cluster]):
    undisturbed = start_run("quiet", **OPTIONS)
    undisturbed.start(LIGHT, "rollout", "learner")

    for seed in range(SEED + 1, SEED + 11):
        with start_run(f"killed-{seed}", **OPTIONS) as killed:
            live_and_die(killed, last_words(seed))
            compare(undisturbed, killed)
