"""What `sluice init` writes is a run that learns."""

from pathlib import Path

import pytest

from broker.messages import StepCommitted
from broker.topology import Log
from ops import roles, settings, starter
from ops.paths import RunPaths
from tests.whole_run import train
from workers.verifiers.pool import Pool

TENTH = 6


@pytest.mark.full
async def test_the_starting_point_learns_as_it_is(tmp_path: Path):
    starter.write(tmp_path)
    c = settings.load(tmp_path / "config.toml", ("run.id='start'",), {})
    run = RunPaths(tmp_path / "run")
    roles.prepare_model(c, run)

    async with Pool(
        size=1, deadline_s=c.verifier.deadline_s, memory_bytes=c.verifier.memory_bytes
    ) as pool:
        finished = await train(c, run.root, pool)

    rewards = [
        event.metrics["reward_mean"] or 0.0
        for _, event in await finished.events(Log.LEDGER, StepCommitted)
        if isinstance(event, StepCommitted)
    ]
    assert len(rewards) == c.run.steps
    assert sum(rewards[-TENTH:]) > sum(rewards[:TENTH]) + 0.15 * TENTH
