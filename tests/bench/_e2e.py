"""Samples a second of the whole system against TRL: same model, weights, prompts, lengths, optimizer.

Ours is `sluice run` with all its roles, NATS and Postgres, and the proofs hold afterwards; as in the demo, a
power loss may cost it two minutes. Both sides have two cores and float32, and train on groups of 8 answers
of exactly 64 tokens: the models' end token has an id that no model gives. Rounds alternate; TRL waits idle
while ours runs. A round in which TRL is slower than its stated figure allows, scaled by a product of
matrices, is repeated.
"""

import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from tokenizers import Tokenizer

from tests.bench._sides import ROOT, Trl, committed, run
from tests.bench._trl_side import Asked
from tests.bench.result import Result

GROUP_SIZE, TOKENS = 8, 64
ETAS = (2, 0)
LEARNING_RATE = 1e-5
STATED_GFLOPS = 170.0
"""Of the product below, two threads, on the machine on which TRL's figures were stated."""
SLOWEST, TRIES = 0.85, 3
"""Of TRL's stated figure; how often a round may be repeated."""
GIB = 2**30
CONFIG = """
[run]
name = "e2e"
steps = {steps}
groups_per_step = {groups}
group_size = {size}
max_staleness = {eta}
no_progress_steps = 1_000_000

[model]
path = "{folder}"

[[source]]
domain = "rows"
path = "{rows}"
verifier = {{ name = "{root}/tests/bench/_vowels.py:Vowels" }}

[sampling]
max_tokens = {tokens}

[learner]
learning_rate = {rate}
checkpoint_every = 1_000_000
threads = 2

[rollout]
threads = {threads}

[nats]
sync_interval = "2m"

[policy]
admit = []
advantage = "grpo"
"""


@dataclass(frozen=True)
class Task:
    """A model, and how long it is measured."""

    name: str
    groups: int
    """A step."""
    rounds: int
    warm_steps: int
    steps: int
    """Measured in each round of ours."""
    trl_steps: int
    """In each of TRL's rounds."""
    stated: float
    """TRL's samples/s, on a machine with STATED_GFLOPS."""
    limit: float
    """Of TRL's samples/s, at least, at eta 2."""

    @property
    def answers(self) -> int:
        return self.groups * GROUP_SIZE


def endless(folder: Path) -> None:
    """Make the end token one that the model never gives, so that all answers are of one length."""
    config = json.loads((folder / "config.json").read_text())
    never = config["vocab_size"]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["<never>"])
    assert tokenizer.token_to_id("<never>") == never
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, key, value in (
        ("config.json", "eos_token_id", never),
        ("generation_config.json", "eos_token_id", never),
        ("tokenizer_config.json", "eos_token", "<never>"),
    ):
        tree = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(tree | {key: value}))


def product_gflops() -> float:
    """Of two threads; the best of many, since whoever else computes can only slow it down."""
    torch.set_num_threads(2)
    left, right = torch.randn(1024, 1024), torch.randn(1024, 1024)
    seconds = []
    for _ in range(50):
        begun = time.perf_counter()
        torch.mm(left, right)
        seconds.append(time.perf_counter() - begun)
    return 2 * 1024**3 / min(seconds) / 1e9


def ours(task: Task, eta: int, number: int, at: Path) -> tuple[float, float]:
    """Trained samples/s between two commits in the middle of a run, and GiB at most."""
    # The last requests of a run are made eta + 1 steps before its end.
    steps = task.warm_steps + task.steps + eta + 1
    config = at / "config.toml"
    config.write_text(
        CONFIG.format(
            steps=steps, groups=task.groups, size=GROUP_SIZE, eta=eta, folder=at / "model",
            rows=at / "rows.jsonl", root=ROOT, tokens=TOKENS, rate=LEARNING_RATE,
            # At eta 0 the engine has the cores to itself while it is at work.
            threads=1 if eta else 2,
        )
    )  # fmt: skip
    run_id = f"eta{eta}-{number}"
    # Servers of its own: the logs of many runs would not fit on one's disk.
    with TemporaryDirectory(prefix="runs-", dir=at, ignore_cleanup_errors=True) as runs:
        summary = run(config, run_id, Path(runs))
        if not all(summary["proofs"].values()):
            raise RuntimeError(f"{run_id}: {summary['proofs']}")
        taken = committed(run_id, Path(runs))
    begun, ended = taken[task.warm_steps - 1], taken[task.warm_steps + task.steps - 1]
    samples = sum(answers for _, _, answers in taken[task.warm_steps :][: task.steps])
    return samples / (ended[1] - begun[1]), summary["peak_memory_bytes"] / GIB


def trl(task: Task, side: Trl) -> tuple[float, float]:
    """TRL's samples/s and GiB at most, repeated while it is slower than it says it is."""
    for _ in range(TRIES):
        gflops = product_gflops()
        seconds, peak = side.steps(task.trl_steps)
        rate = task.answers * task.trl_steps / seconds
        least = SLOWEST * task.stated * min(gflops / STATED_GFLOPS, 1.0)
        tell(f"TRL {rate:.3g} samples/s, {gflops:.0f} GFLOP/s, expected at least {least:.3g}")
        if rate >= least:
            return rate, peak / GIB
    raise RuntimeError(f"TRL was slower than {least:.3g} samples/s {TRIES} times: a busy machine?")


def tell(line: str) -> None:
    print(f"  {line}", file=sys.stderr, flush=True)


def write_rows(path: Path, prompts: Sequence[str]) -> None:
    path.write_text("".join(json.dumps({"prompt": p, "target": "-"}) + "\n" for p in prompts))


def measure_task(task: Task, at: Path) -> list[Result]:
    """at: with the folder `model` and `rows.jsonl`."""
    asked = Asked(
        folder=str(at / "model"), rows=str(at / "rows.jsonl"), reward="vowels",
        answers=task.answers, group_size=GROUP_SIZE, max_tokens=TOKENS,
        learning_rate=LEARNING_RATE, schedule="constant", steps=100_000, seed=0,
    )  # fmt: skip
    found: dict[str, list[tuple[float, float]]] = {"trl": [], "2": [], "0": []}
    with Trl(asked, at) as side:
        side.steps(1)
        for number in range(task.rounds):
            # Everybody goes first in turn.
            order = ["trl", *map(str, ETAS)]
            for who in order[number % 3 :] + order[: number % 3]:
                one = trl(task, side) if who == "trl" else ours(task, int(who), number, at)
                tell(f"round {number + 1}, {who}: {one[0]:.4g} samples/s, {one[1]:.2f} GiB")
                found[who].append(one)
    rate, memory = (
        {who: statistics.median(one[what] for one in rounds) for who, rounds in found.items()}
        for what in (0, 1)
    )
    results = []
    for eta in ETAS:
        results += [
            Result(
                "e2e", f"{task.name}, eta {eta}", "samples/s", rate[str(eta)], rate["trl"],
                limit=task.limit * rate["trl"] if eta == 2 else None, rounds=task.rounds,
            ),
            Result(
                "e2e", f"{task.name}, eta {eta}, memory at most", "GiB", memory[str(eta)],
                memory["trl"], rounds=task.rounds, more_is_better=False,
            ),
        ]  # fmt: skip
    return results
