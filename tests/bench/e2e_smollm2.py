"""Samples/s of the whole system on SmolLM2-135M, against TRL's GRPOTrainer.

16 answers of 64 tokens a step; see _e2e.py. Left out where ops/bin/smollm2 has not made the model.
"""

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tests.bench import _e2e
from tests.bench.engine import SMOLLM2
from tests.bench.result import Result

PROMPTS = 512
NAMES, THINGS = ("Ann", "Ben", "Carla", "Dmitri", "Eve"), ("apples", "books", "coins", "pens")
TASK = _e2e.Task(
    "SmolLM2-135M", groups=2, rounds=5, warm_steps=3, steps=4, trl_steps=3, stated=0.48, limit=1.8,
)  # fmt: skip
SHORT = replace(TASK, rounds=1, warm_steps=2, steps=1, trl_steps=1, stated=0.0)


def prepare(at: Path) -> None:
    shutil.copytree(SMOLLM2, at / "model")
    _e2e.endless(at / "model")
    rng = np.random.default_rng(0)

    def prompt() -> str:
        name, thing, (a, b) = rng.choice(NAMES), rng.choice(THINGS), rng.integers(2, 100, 2)
        return (
            f"{name} has {a} {thing} and buys {b} more every week. How many {thing} does {name} have "
            f"after {rng.integers(2, 12)} weeks?\nAnswer:"
        )

    _e2e.write_rows(at / "rows.jsonl", sorted({prompt() for _ in range(PROMPTS)}))


def measure(*, short: bool = False) -> list[Result]:
    if not (SMOLLM2 / "model.safetensors").exists():
        print(f"{SMOLLM2} is not there (ops/bin/smollm2): left out", file=sys.stderr)
        return []
    with TemporaryDirectory(prefix="sluice-bench-") as scratch:
        prepare(Path(scratch))
        return _e2e.measure_task(SHORT if short else TASK, Path(scratch))
