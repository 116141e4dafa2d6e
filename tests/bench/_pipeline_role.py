"""One role of the pipeline benchmark as its own process: `_pipeline_role ROLE CONFIG`.

The roles are as they are, but for what computes: the engine answers at once with made-up tokens, and the
trainer leaves the model alone.
"""

import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from broker.messages import VersionSpan
from broker.telemetry import now_us
from learner.batch import Row
from ops import settings, worker
from ops.paths import RunPaths, default_runs
from workers.rollout.engine import Answer, Job, Result

FIRST_TOKEN = 3
"""Special tokens lie below it."""
CHARACTERS = 26
_RNG = np.random.default_rng(0)
SAID = _RNG.integers(FIRST_TOKEN, FIRST_TOKEN + CHARACTERS, 1 << 16).astype(np.int32)
LOGPROBS = -_RNG.random(SAID.size, np.float32)
"""Made up once: an answer is a piece of them, so that the engine costs next to nothing."""


class EchoEngine:
    """Answers every job at once, with as many tokens as it may have."""

    name = "echo"

    def __init__(self) -> None:
        self.version: int | None = None
        self.rows = 0
        self.sampled = 0

    async def generate(self, jobs: Sequence[Job]) -> list[Result]:
        return [tuple(self._answer(job, seed) for seed in job.seeds) for job in jobs]

    def _answer(self, job: Job, seed: int) -> Answer:
        tokens = job.sampling.max_tokens
        self.sampled += tokens
        first = seed % (SAID.size - tokens)
        at = now_us()
        return Answer(
            token_ids=SAID[first : first + tokens],
            logprobs=LOGPROBS[first : first + tokens],
            finish_reason="length",
            spans=(VersionSpan(version=self.version or 0, first=0, end=tokens),),
            started_at_us=at,
            finished_at_us=at,
        )

    async def load(self, weights: Path, version: int) -> None:
        self.version = version

    async def close(self) -> None:
        return


class NullTrainer:
    """Takes every step at once; its weights are the number of steps taken."""

    vocabulary = FIRST_TOKEN + 100
    dtype = "float32"

    def __init__(self) -> None:
        self.interrupted = threading.Event()
        self._steps = 0

    def logprobs(self, rows: Sequence[Row]) -> list[object]:
        """The engine's own, so that the two agree at the start."""
        import torch

        return [torch.from_numpy(row.rollout_logprobs_T.copy()) for row in rows]

    def begin(self, rows: Sequence[object]) -> object:
        from learner.trainer import Begun

        return Begun()

    def finish(self, begun: object, **how: object) -> object:
        from learner.trainer import Taken

        self._steps += 1
        return Taken("", {"loss": 0.0, "grad_norm": 0.0})

    def weights(self) -> bytes:
        return save({"steps": np.array([self._steps], np.int64)})

    def rng(self) -> bytes:
        return b""

    def state(self) -> tuple[bytes, bytes]:
        return self.weights(), b""


def compute_nothing(role: str) -> None:
    """Put both in the places of those that compute."""
    if role == "rollout":
        from workers.rollout import worker as rollout

        rollout.make_engine = lambda *_, **__: EchoEngine()
    elif role == "learner":
        from learner import worker as learner

        learner.make_trainer = lambda *_, **__: NullTrainer()  # type: ignore[assignment]


def main(role: str, config: Path) -> int:
    configuration = settings.load(config)
    compute_nothing(role)
    paths = RunPaths(default_runs() / configuration.run.id)
    return worker.main(configuration, (role,), paths, resume=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
