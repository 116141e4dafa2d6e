"""Samples/s of the whole system on a tiny model, servers and audit included, against TRL's GRPOTrainer.

A Llama of 1.06 million parameters, 64 answers of 64 tokens a step; see _e2e.py.
"""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from learner.model import load_model, weights_bytes
from learner.settings import TinyModel
from learner.tiny import write_model_folder
from tests.bench import _e2e
from tests.bench.result import Result

CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz+-*/=<>()[]{}!&|^~?.,:;#%@ _"
PROMPTS, SHORTEST, LONGEST = 4096, 8, 24
TASK = _e2e.Task(
    "tiny", groups=8, rounds=5, warm_steps=10, steps=40, trl_steps=20, stated=47.0, limit=2.0
)
SHORT = replace(TASK, rounds=1, warm_steps=3, steps=5, trl_steps=2, stated=0.0)


def prepare(at: Path) -> None:
    """Model and rows, the same every time."""
    model = at / "model"
    write_model_folder(TinyModel(characters=CHARACTERS, intermediate=512), model)
    (model / "model.safetensors").write_bytes(
        weights_bytes(load_model(model, device="cpu", seed=0))
    )
    _e2e.endless(model)
    rng = np.random.default_rng(0)
    lengths = rng.integers(SHORTEST, LONGEST + 1, PROMPTS)
    prompts = ["".join(rng.choice(list(CHARACTERS), n)) for n in lengths]
    _e2e.write_rows(at / "rows.jsonl", prompts)


def measure(*, short: bool = False) -> list[Result]:
    with TemporaryDirectory(prefix="sluice-bench-") as scratch:
        prepare(Path(scratch))
        return _e2e.measure_task(SHORT if short else TASK, Path(scratch))
