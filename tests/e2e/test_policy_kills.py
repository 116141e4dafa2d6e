"""The policy dies in the middle of windows and updates: the run is the one in which it did not."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog

from broker.messages import ShadowDecided, StepCommitted
from broker.topology import Log
from tests.policy_run import outcome, plain
from tests.whole_run import Finished, configured, from_warm, train
from workers.policies import worker
from workers.verifiers.pool import Pool

POLICY: dict[str, object] = {
    "admit": ["dynamic_sampling"],
    "advantage": "dbb",
    "weight": {"scorer": "advantage_magnitude", "actuator": "softmax"},
    "mixer": {"name": "dump_ucb", "temperature": 0.1},
    "shadow": [{"preset": "dbb"}, {"preset": "matched_tokens:topk"}],
}
"""Everything with a memory: prompts, domains, a budget, and two shadows."""
DEATHS = ((2, 3, 2), (4, 12, 5), (6, 1, 7, 9), (14, 1, 5), (25, 3))
"""Publications with which the lives of the policy end: mixtures, drops, windows, shadows, snapshots."""


def train_them(folder: Path, model: Path) -> list[Finished]:
    async def all_of_them() -> list[Finished]:
        async with Pool(size=1, deadline_s=20.0, memory_bytes=1 << 30) as pool:
            return await asyncio.gather(
                *(
                    train(
                        configured("r", run={"steps": 4}, policy=POLICY, **from_warm(model)),
                        folder / str(number),
                        pool,
                        policy_dies_at=deaths,
                    )
                    for number, deaths in enumerate(((), *DEATHS))
                )
            )

    return asyncio.run(all_of_them())


NO_MATTER = {
    "writer_id", "at_us", "started_at_us", "finished_at_us", "verified_seq", "cut", "step",
}  # fmt: skip
"""Times, worker names, sequences, and how far the learner was: two equal runs differ in these."""


def bare(tree: object) -> object:
    """Without what does not matter, all the way down."""
    if isinstance(tree, dict):
        return {name: bare(value) for name, value in tree.items() if name not in NO_MATTER}
    return [bare(value) for value in tree] if isinstance(tree, list | tuple) else tree


async def all_that_counts(found: Finished) -> dict[str, object]:
    annotated, mixtures = await outcome(found.bus())
    shadows = [event for _, event in await found.events(Log.LEDGER, ShadowDecided)]
    committed = [event for _, event in await found.events(Log.LEDGER, StepCommitted)]
    assert shadows
    return {
        "decisions": bare(annotated),
        "mixtures": bare(mixtures),
        "shadows": bare(plain(shadows)),
        "weights": [event.digest for event in committed if isinstance(event, StepCommitted)],
    }


@dataclass(frozen=True)
class Lives:
    runs: list[Finished]
    """The first undisturbed."""
    afters: list[int]
    """Where each life of a policy began in VERIFIED: 0, or at its snapshot."""


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory, warm: Path) -> Lives:
    with pytest.MonkeyPatch.context() as patch, structlog.testing.capture_logs() as logs:
        patch.setattr(worker, "SNAPSHOT_EVERY", 2)
        runs = train_them(tmp_path_factory.mktemp("kills"), warm)
    return Lives(runs, [int(e["after"]) for e in logs if e["event"] == "policy starts"])


def test_some_lives_begin_with_a_snapshot_and_some_before_the_first(lives: Lives):
    assert len(lives.afters) == 1 + sum(len(deaths) + 1 for deaths in DEATHS)
    assert sum(after > 0 for after in lives.afters) >= 5
    # The undisturbed life is one, and each run's first.
    assert sum(after == 0 for after in lives.afters) > 1 + len(DEATHS)


@pytest.mark.parametrize("number", range(1, len(DEATHS) + 1))
async def test_killed_in_the_middle_the_policy_decides_and_trains_what_it_would_have(
    lives: Lives, number: int
):
    runs = lives.runs
    undisturbed, killed = await all_that_counts(runs[0]), await all_that_counts(runs[number])

    for part, expected in undisturbed.items():
        assert killed[part] == expected, part
