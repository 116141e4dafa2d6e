"""The whole system, made synchronous, equals a plain loop."""

from collections.abc import Callable

import numpy as np

from ops.settings import load
from tests.e2e.cluster import ROLES, Cluster
from tests.e2e.reference_loop import train
from workers.dispatcher import sources
from workers.dispatcher.rendering import Renderer

STEPS = 10


def test_ten_synchronous_steps_equal_a_plain_loop(start_run: Callable[..., Cluster]):
    cluster = start_run(
        "parity",
        steps=STEPS,
        run_extra="deterministic = true\nmax_staleness = 0\nno_progress_steps = 100",
        extra="[policy]\nadmit = []",
        eval_items=0,
    )
    cluster.start(*ROLES)
    cluster.wait_end(limit_s=180)
    steps = cluster.query("select step, status, loss from learner_step order by step")
    answers = cluster.query(
        "select g.trained_step, a.group_id, a.generation_index as index, n.token_ids, a.reward, a.advantage,"
        " a.window_no from annotation a join generation n using (run_id, group_id, generation_index)"
        " join prompt_group g using (run_id, group_id)"
    )
    configuration = load(cluster.config, environment=cluster.environment)
    renderer = Renderer(cluster.run_dir / "model", configuration.prompt)

    expected = train(
        cluster.run_dir / "model",
        next(cluster.run_dir.glob("checkpoints/step-00000000-*/model.safetensors")),
        sources.load(configuration.source, renderer, seed=configuration.run.seed),
        renderer,
        seed=configuration.run.seed,
        steps=STEPS,
        groups=configuration.run.groups_per_step,
        size=configuration.run.group_size,
        max_tokens=configuration.sampling.max_tokens,
        learning_rate=configuration.learner.learning_rate,
    )

    assert len(answers) == STEPS * 4 * 4
    for row in answers:
        step, key = expected[row["window_no"] - 1], (row["group_id"], row["index"])
        assert np.frombuffer(row["token_ids"], "<i4").tolist() == step.tokens[key], key
        assert row["reward"] == step.rewards[key]
        assert abs(row["advantage"] - step.advantages[key]) < 1e-4
    assert [row["step"] for row in steps] == list(range(1, STEPS + 1))
    for row, step in zip(steps, expected, strict=True):
        assert abs(row["loss"] - step.loss) < 1e-4
    trained = [row for row in steps if row["status"] == "trained"]
    assert len(trained) >= 5, "too few steps had any signal to compare"
