"""Rewards that say nothing teach nothing; the one that says something teaches it."""

import itertools
import json
import string
from collections.abc import Callable
from pathlib import Path

from tests.e2e.cluster import LIGHT, Cluster

CONSTANT = '''
from workers.verifiers.protocol import Finding, Verifier, judged


class Constant(Verifier):
    """Every answer is right."""

    def grade(self, response: str, target: str | None, item: dict[str, object]) -> Finding:
        return judged(True, response, response)
'''
OF_ONES_OWN = """
[[source]]
domain = "words"
generator = "ordering"
options = {length = 2, letters = 12}
verifier = {name = "./constant.py:Constant"}
"""
UNDECIDED = """
[[source]]
domain = "undecided"
path = "train.jsonl"
eval_path = "held_out.jsonl"
eval_items = 80
"""
LETTERS = string.ascii_lowercase


def test_a_constant_reward_leaves_the_model_as_it_was(start_run: Callable[..., Cluster]):
    run = start_run(
        "constant",
        sources=OF_ONES_OWN,
        warmup=5,
        run_extra="no_progress_steps = 100",
        extra="[policy]\nadmit = []",
    )
    (run.directory / "constant.py").write_text(CONSTANT)

    run.start(LIGHT, "rollout", "learner")
    run.wait_end()

    assert run.status() == "finished"
    assert run.proofs() == {}
    rewards = run.query(
        "select count(*) as rows, min(reward) as low, max(reward) as high from annotation"
    )
    assert rewards == [{"rows": 4 * 4 * 4, "low": 1.0, "high": 1.0}]
    (first,) = run.query("select version, digest from weights")
    assert first["version"] == 0
    steps = run.query("select step, digest, weights_version from learner_step order by step")
    assert [row["step"] for row in steps] == [1, 2, 3, 4]
    assert {(row["digest"], row["weights_version"]) for row in steps} == {(first["digest"], 0)}
    checkpoints = sorted(run.run_dir.glob("checkpoints/step-*/model.safetensors"))
    assert len(checkpoints) > 1
    assert len({path.read_bytes() for path in checkpoints}) == 1


def write_undecided_task(folder: Path) -> None:
    """Copy two letters. The worked solutions copy them the wrong way round eight times in ten.

    So the model starts undecided between two answers, the wrong one ahead, and what it then comes to
    prefer is what its reward prefers. Letters that are held out together are so in both orders.
    """
    pairs = [first + second for first, second in itertools.combinations(LETTERS, 2)]
    held_out = [word for pair in pairs[::8] for word in (pair, pair[::-1])]
    words = [word for pair in pairs for word in (pair, pair[::-1]) if word not in held_out]
    solutions = [(word, word if copy < 2 else word[::-1]) for word in words for copy in range(10)]
    train = [{"prompt": f"{w}>", "target": w, "solution": s} for w, s in solutions]
    measured = [{"prompt": f"{w}>", "target": w} for w in held_out]
    for name, rows in (("train", train), ("held_out", measured)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))


def test_only_a_reward_that_knows_the_answer_raises_held_out_accuracy(
    start_run: Callable[..., Cluster],
):
    def start(name: str, policy: str) -> Cluster:
        run = start_run(
            name,
            sources=UNDECIDED,
            steps=40,
            groups_per_step=8,
            group_size=8,
            hidden=64,
            warmup=200,
            learning_rate=7e-4,
            checkpoint_every=40,
            # Comes out the same on every run.
            run_extra="deterministic = true\nmax_staleness = 0\nno_progress_steps = 100",
            extra=f"[policy]\nadmit = []\n{policy}",
        )
        write_undecided_task(run.directory)
        run.start(LIGHT, "rollout", "learner")
        return run

    runs = [start("true", ""), start("random", 'reward = ["random"]')]
    gains = []
    for run in runs:
        run.wait_end(limit_s=180)
        assert run.status() == "finished"
        scores = run.query(
            "select score from evaluation where run_id = %(run)s order by version", run=run.run
        )
        first, last = scores[0]["score"], scores[-1]["score"]
        gains.append(last - first)

    true, random = gains
    # Found: +0.59 and +0.03, the same on every run of one machine.
    assert true > 0.4
    assert random < 0.15
