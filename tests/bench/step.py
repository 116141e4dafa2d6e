"""One optimizer step on answers of 16 to 512 tokens at a vocabulary of 49,152, against TRL's step.

Trained answer tokens a second, and the memory a step takes beyond what is held between steps. Both sides
live in processes of their own, with two threads each, and take their steps in turn.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path

from learner.settings import TinyModel
from learner.tiny import write_model_folder
from tests.bench import peer
from tests.bench._step_side import VOCABULARY, lengths
from tests.bench.result import Result

ROOT = Path(__file__).parents[2]
ROUNDS = 5
SPEED_LIMIT, MEMORY_LIMIT = 1.5, 0.5
"""Of the peer's: at least, at most."""
MEGABYTE = 1e6
ANSWER_LIMIT_S = 300.0
"""The first answer of a side comes after its imports and a step."""


class Side:
    """A process that takes a step when it is told to."""

    def __init__(self, side: str, folder: Path, path: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.bench._step_side", side, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "2"},
        )
        self._answer("ready")

    def step(self) -> tuple[float, float]:
        """Seconds and extra bytes of one step."""
        assert self._process.stdin is not None
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        found = self._answer("seconds")
        return found["seconds"], found["extra"]

    def _answer(self, key: str) -> dict[str, float]:
        assert self._process.stdout is not None
        late = threading.Timer(ANSWER_LIMIT_S, self._process.kill)
        late.start()
        try:
            for line in self._process.stdout:
                if line.startswith("{") and key in (found := json.loads(line)):
                    return found
        finally:
            late.cancel()
        raise RuntimeError(
            f"a side of the step benchmark ended with {self._process.wait()}, or gave no answer "
            f"within {ANSWER_LIMIT_S:g} s"
        )

    def __enter__(self) -> "Side":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def a_model(folder: Path) -> None:
    """A small Llama with a large vocabulary; its tokenizer knows few of the ids."""
    write_model_folder(
        TinyModel(
            characters="0123456789", hidden=256, layers=4, heads=4, kv_heads=4, intermediate=688,
            positions=1024,
        ),
        folder,
    )  # fmt: skip
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": VOCABULARY}))


def measure() -> list[Result]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-bench-")))
        a_model(folder)
        trl = f"{ROOT}{os.pathsep}{peer.installed()}"
        sides = [
            stack.enter_context(Side("ours", folder, str(ROOT))),
            stack.enter_context(Side("trl", folder, trl)),
        ]
        rounds = [[side.step() for side in sides] for _ in range(ROUNDS)]
    seconds, extra = (
        [statistics.median(one[side][what] for one in rounds) for side in (0, 1)] for what in (0, 1)
    )
    speed, memory = [sum(lengths()) / s for s in seconds], [b / MEGABYTE for b in extra]
    return [
        Result(
            "step", "trained answer tokens", "tokens/s", speed[0], speed[1],
            limit=SPEED_LIMIT * speed[1], rounds=ROUNDS,
        ),
        Result(
            "step", "peak extra memory", "MB", memory[0], memory[1],
            limit=MEMORY_LIMIT * memory[1], rounds=ROUNDS, more_is_better=False,
        ),
    ]  # fmt: skip
