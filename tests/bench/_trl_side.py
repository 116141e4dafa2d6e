"""TRL's GRPOTrainer as a process that trains so many steps when it is told to: `_trl_side ASKED.json`.

Reads a number of steps a line; a JSON line with seconds and peak memory answers each. Its configuration is
frozen: what the benchmarks state (see Asked), no recomputed activations, which would slow it down, and
otherwise TRL's own defaults.
"""

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from tests.bench import _vowels
from tests.bench._step_side import resident

THREADS = 2


@dataclass(frozen=True)
class Asked:
    """What both sides have in common."""

    folder: str
    """Of the model, with weights."""
    rows: str
    """JSONL: prompt, and the target where `reward` is exact."""
    reward: str
    """`vowels` or `exact`."""
    answers: int
    """A step, in groups of `group_size`."""
    group_size: int
    max_tokens: int
    learning_rate: float
    schedule: str
    steps: int
    """At most; the learning rate's schedule ends here."""
    seed: int
    save: str = ""
    """A file for the weights after the last step."""

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps(asdict(self)))
        return path


def rewards(kind: str) -> Any:
    """A reward function as TRL wants it."""
    if kind == "vowels":
        return lambda completions, **_: [_vowels.share(text) for text in completions]
    from workers.verifiers.exact import Exact

    exact = Exact()
    return lambda completions, target, **_: [
        exact.grade(text, gold, {}).score or 0.0
        for text, gold in zip(completions, target, strict=True)
    ]


def trainer_of(asked: Asked, gate: Any) -> Any:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    rows = [json.loads(line) for line in Path(asked.rows).read_text().splitlines()]
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(asked.folder, dtype=torch.float32),
        reward_funcs=rewards(asked.reward),
        args=GRPOConfig(
            output_dir=f"{asked.folder}-trl", use_cpu=True, bf16=False, beta=0.0, report_to=[],
            per_device_train_batch_size=asked.answers, num_generations=asked.group_size,
            max_completion_length=asked.max_tokens, temperature=1.0,
            learning_rate=asked.learning_rate, lr_scheduler_type=asked.schedule,
            max_steps=asked.steps, gradient_checkpointing=False, save_strategy="no",
            disable_tqdm=True, shuffle_dataset=False, seed=asked.seed,
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(asked.folder),
        callbacks=[gate],
    )  # fmt: skip


def make_gate() -> Any:
    from transformers import TrainerCallback

    class Gate(TrainerCallback):
        """Waits before the first step and after each round for the number of the next steps."""

        left = 0
        begun = 0.0

        def _wait(self, control: Any) -> None:
            line = sys.stdin.readline()
            self.left = int(line or 0)
            control.should_training_stop = not line
            Path("/proc/self/clear_refs").write_text("5")
            self.begun = time.perf_counter()

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            print(json.dumps({"ready": True}), flush=True)
            self._wait(control)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.left -= 1
            if self.left > 0:
                return
            seconds = time.perf_counter() - self.begun
            print(json.dumps({"seconds": seconds, "peak": resident("VmHWM")}), flush=True)
            if state.global_step < state.max_steps:
                self._wait(control)

    return Gate()


def main(asked: Asked) -> None:
    torch.set_num_threads(THREADS)
    trainer = trainer_of(asked, make_gate())
    trainer.train()
    if asked.save:
        from learner.model import weights_bytes

        Path(asked.save).write_bytes(weights_bytes(trainer.model))
        print(json.dumps({"saved": True}), flush=True)


if __name__ == "__main__":
    main(Asked(**json.loads(Path(sys.argv[1]).read_text())))
