"""Whatever a run is made of may die at any moment: it completes, nothing lost, doubled or different."""

import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.e2e.cluster import ENDLESS, PASSED, ROLES
from tests.e2e.kill_matrix import case, deployed, try_out
from tests.e2e.kills import KINDS, Deployment, Postgres, examine

SEED = 11
RECOVERY_LIMIT_S = 90.0
"""What a killed worker held comes again after 30 s; a restart takes seconds on a quiet machine."""
MOMENT_S = 0.3
"""A kill falls within this after a step was committed: anywhere in a step or two."""
UNDER_WAY = 3
"""Steps' worth of groups that are under way, so that as many steps could follow without what was killed."""
WITHOUT_STORE = ("dispatcher", "policy")
"""They die and come back while Postgres is away; the learner dies too, and comes back after it."""
WITH_STORE = ("nats", "recorder", "rollout", "verifier", "all")
SWEEP = 100


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    # Not under pytest's folder, which is closed to the user that the server runs as.
    with TemporaryDirectory(prefix="sluice-postgres-") as folder:
        server = Postgres(Path(folder))
        try:
            yield server
        finally:
            server.stop()


def strike_in_turn(
    deployment: Deployment, kinds: Sequence[str], rng: random.Random, *, steps: int
) -> None:
    """Kill each at a moment of its own, and see so many steps committed before the next."""
    for kind in kinds:
        time.sleep(rng.uniform(0, MOMENT_S))
        with deployment.striking(kind, rng):
            deployment.wait_step(deployment.step() + steps, limit_s=RECOVERY_LIMIT_S)


def test_a_run_outlives_the_death_of_everything_it_is_made_of(tmp_path: Path, postgres: Postgres):
    assert {*WITHOUT_STORE, *WITH_STORE, "learner", "postgres"} == set(KINDS)
    rng = random.Random(SEED)
    options = ENDLESS | {"checkpoint_every": 7}
    with deployed(tmp_path, postgres, "matrix", **options) as deployment:
        deployment.run.start(*ROLES)
        deployment.wait_step(1, limit_s=RECOVERY_LIMIT_S)

        with deployment.striking("postgres", rng):
            strike_in_turn(deployment, WITHOUT_STORE, rng, steps=UNDER_WAY + 1)
            deployment.run.kill("learner")
        deployment.run.start("learner")
        deployment.wait_step(deployment.step() + 1, limit_s=RECOVERY_LIMIT_S)
        strike_in_turn(deployment, WITH_STORE, rng, steps=1)
        deployment.wait_step(deployment.step() + PASSED, limit_s=RECOVERY_LIMIT_S)

        found = examine(deployment, deployment.run.stop(), status="stopped")
        assert found.problems == []
        assert found.redone > 0, "the learner was never killed after a step"


@pytest.mark.full
@pytest.mark.parametrize("number", range(SWEEP))
def test_a_run_outlives_a_kill_at_any_moment(number: int, tmp_path: Path, postgres: Postgres):
    outcome = try_out(case(number, SEED), tmp_path, postgres)

    assert outcome.problems == []
