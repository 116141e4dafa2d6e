"""Worked examples for the supervised start, and the order they are drawn in. No torch here."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from broker.errors import BadConfiguration


@dataclass(frozen=True)
class WarmupExample:
    """A prompt with a worked answer that ends with the end token."""

    prompt_ids: list[int]
    answer_ids: list[int]


def check_examples(examples: Sequence[WarmupExample], *, vocabulary: int) -> None:
    """Raises BadConfiguration for what cannot be trained on."""
    if not examples:
        raise BadConfiguration(
            "warmup.steps: above 0, but no source gives a worked solution; expected some or 0 steps"
        )
    for index, example in enumerate(examples):
        ids = (*example.prompt_ids, *example.answer_ids)
        if not example.prompt_ids or not example.answer_ids:
            raise BadConfiguration(
                f"warm-up example {index}: {len(example.prompt_ids)} prompt and "
                f"{len(example.answer_ids)} answer tokens; expected at least one of each"
            )
        if min(ids) < 0 or max(ids) >= vocabulary:
            raise BadConfiguration(
                f"warm-up example {index}: token ids {min(ids)}..{max(ids)}; the model has {vocabulary}"
            )


def draw_batches(count: int, batch_size: int, steps: int, seed: int) -> Iterator[list[int]]:
    """Example indices per step: seeded permutations of all examples, one after the other."""
    rng = np.random.Generator(np.random.PCG64(seed))
    queue: list[int] = []
    for _ in range(steps):
        while len(queue) < batch_size:
            queue.extend(rng.permutation(count).tolist())
        yield queue[:batch_size]
        del queue[:batch_size]


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Rises linearly over the first twentieth of the steps, then falls linearly to a tenth of the peak.

    step counts from 0.
    """
    rise = max(1, steps // 20)
    if step < rise:
        return peak * (step + 1) / rise
    return peak * (1.0 - 0.9 * (step - rise) / max(1, steps - rise))
