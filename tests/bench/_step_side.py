"""One side of the step benchmark: `_step_side ours|trl FOLDER`; a JSON line for each line read.

Both take the same step on the same rows: one optimizer update of a Llama with a vocabulary of 49,152.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

ROWS, PROMPT, SHORTEST, LONGEST, VOCABULARY = 16, 16, 16, 512, 49_152
THREADS = 2
LEARNING_RATE = 1e-5


def lengths() -> list[int]:
    """Mixed: as many short answers as long ones, on a logarithmic scale."""
    return [round(n) for n in np.geomspace(SHORTEST, LONGEST, ROWS)]


def some_rows() -> list[tuple[np.ndarray, np.ndarray, float]]:
    """(prompt ids, answer ids, advantage), in no order of length."""
    rng = np.random.default_rng(0)
    rows = [
        (rng.integers(3, VOCABULARY, PROMPT), rng.integers(3, VOCABULARY, n), float(rng.normal()))
        for n in lengths()
    ]
    return [rows[i] for i in rng.permutation(ROWS)]


def our_step(folder: Path) -> Callable[[], object]:
    from learner.batch import Row
    from learner.model import load_model
    from learner.settings import LearnerSettings
    from learner.trainer import Trainer

    model = load_model(folder, device="cpu", seed=0)
    settings = LearnerSettings(learning_rate=LEARNING_RATE, threads=THREADS)
    trainer = Trainer(model, settings, dtype=torch.float32, interrupted=threading.Event())
    rows = [
        Row(
            group=0, prompt_ids_P=prompt.astype(np.int32), answer_ids_T=answer.astype(np.int32),
            rollout_logprobs_T=np.full(len(answer), -10.8, np.float32), advantage=advantage,
            weight=1.0, token_weights_T=None, temperature=1.0, max_tokens=LONGEST,
        )
        for prompt, answer, advantage in some_rows()
    ]  # fmt: skip
    return lambda: trainer.step(rows)


def peer_step(folder: Path) -> Callable[[], object]:
    """TRL's own loss on its own padded batch; without recomputed activations, which would slow it down."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from learner.model import load_model

    plain = load_model(folder, device="cpu", seed=0)
    plain.set_attn_implementation("sdpa")
    trainer = GRPOTrainer(
        model=plain,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir=str(folder / "trl"), use_cpu=True, bf16=False, beta=0.0, report_to=[],
            per_device_train_batch_size=ROWS, num_generations=ROWS, max_completion_length=LONGEST,
            learning_rate=LEARNING_RATE, gradient_checkpointing=False, epsilon_high=0.28,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["0"] * ROWS}),
        processing_class=AutoTokenizer.from_pretrained(folder),
    )  # fmt: skip
    trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = 1
    model = trainer.model.train()
    rows = some_rows()
    completions, mask = np.zeros((ROWS, LONGEST), np.int64), np.zeros((ROWS, LONGEST), np.int64)
    for index, (_, answer, _) in enumerate(rows):
        completions[index, : len(answer)], mask[index, : len(answer)] = answer, 1
    inputs = {
        "prompt_ids": torch.from_numpy(np.stack([prompt for prompt, _, _ in rows])),
        "prompt_mask": torch.ones(ROWS, PROMPT, dtype=torch.int64),
        "completion_ids": torch.from_numpy(completions),
        "completion_mask": torch.from_numpy(mask),
        "advantages": torch.tensor([advantage for _, _, advantage in rows]),
        "num_items_in_batch": torch.tensor(float(mask.sum())),
    }

    def step() -> None:
        trainer._compute_loss(model, inputs).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()

    return step


def resident(key: str) -> int:
    """Bytes; VmHWM is the most since it was reset."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(key))
    return int(line.split()[1]) * 1024


def main(side: str, folder: Path) -> None:
    torch.set_num_threads(THREADS)
    step = our_step(folder) if side == "ours" else peer_step(folder)
    step()
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        Path("/proc/self/clear_refs").write_text("5")
        before, started = resident("VmRSS"), time.perf_counter()
        step()
        seconds = time.perf_counter() - started
        found = {"seconds": seconds, "extra": resident("VmHWM") - before}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
