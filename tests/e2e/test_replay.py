"""`sluice replay`: a finished run's steps come out as they were committed, in a process of their own."""

import json
from pathlib import Path

from broker.bus import Bus
from broker.topology import Log
from tests.e2e.cluster import Cluster


async def ends(bus: Bus) -> dict[Log, int]:
    return {log: (await bus.state(log)).last for log in Log}


def files(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_every_step_is_redone_to_its_committed_digest(finished_run: Cluster):
    before = finished_run.with_bus(ends), files(finished_run.run_dir / "checkpoints")
    rows = finished_run.query("select step, status, digest from learner_step order by step")

    told = json.loads(finished_run.sluice("replay", finished_run.run, "--json").stdout)

    assert (told["from_checkpoint"], told["to_step"], told["agrees"]) == (0, len(rows), True)
    assert [(s["step"], s["status"], s["redone"]) for s in told["steps"][1:]] == [
        (row["step"], row["status"], row["digest"]) for row in rows
    ]
    assert told["missing"] == []
    assert (finished_run.with_bus(ends), files(finished_run.run_dir / "checkpoints")) == before


def test_a_replay_ends_at_the_step_asked_for_or_refuses_it(finished_run: Cluster):
    out = finished_run.sluice("replay", finished_run.run, "--to-step", "1").stdout
    refused = finished_run.sluice("replay", finished_run.run, "--to-step", "99", code=2)

    assert out.count("equal") == 3
    assert "step 1 reached from checkpoint 0, 1 steps redone" in out
    assert "--to-step 99: expected 0..6, the last committed step" in refused.stderr
