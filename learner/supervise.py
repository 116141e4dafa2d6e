"""The supervised start: next-token cross-entropy on the answers of worked examples."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from learner.batch import Row, micro_batches
from learner.layout import lay_out
from learner.model import answer_logprobs
from learner.settings import WarmupSettings
from learner.warmup import WarmupExample, draw_batches, learning_rate

MAX_GRAD_NORM = 1.0

Progress = Callable[[int, float], None]
"""Told the number of the step, from 1, and its loss in nats per answer token."""


def warm_up(
    model: PreTrainedModel,
    examples: Sequence[WarmupExample],
    settings: WarmupSettings,
    *,
    micro_batch_tokens: int,
    seed: int,
    dtype: torch.dtype,
    progress: Progress,
) -> None:
    """Change the model in place by `settings.steps` steps of AdamW; the same seed, the same weights.

    Raises Interrupted where the model was made interruptible.
    """
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, weight_decay=0.0, fused=True
    )
    draws = draw_batches(len(examples), settings.batch_size, settings.steps, seed)
    for step, indices in enumerate(draws):
        rows = [_row(examples[index]) for index in indices]
        rate = learning_rate(step, settings.steps, settings.learning_rate)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = 0.0
        scale = 1.0 / sum(row.tokens for row in rows)
        for batch in micro_batches([row.length - 1 for row in rows], micro_batch_tokens):
            loss += _backward(model, [rows[index] for index in batch], scale, dtype)
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM, error_if_nonfinite=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        progress(step + 1, loss)


def _backward(
    model: PreTrainedModel, rows: Sequence[Row], scale: float, dtype: torch.dtype
) -> float:
    batch = lay_out(rows, np.full(len(rows), scale), model.device)
    logprobs_N, _ = answer_logprobs(model, batch, dtype=dtype)
    loss = -(logprobs_N * batch.line.coefficients_N).sum()
    loss.backward()
    return loss.item()


def _row(example: WarmupExample) -> Row:
    answer_ids_T = np.asarray(example.answer_ids, np.int32)
    return Row(
        group=0,
        prompt_ids_P=np.asarray(example.prompt_ids, np.int32),
        answer_ids_T=answer_ids_T,
        rollout_logprobs_T=np.zeros(len(answer_ids_T), np.float32),
        advantage=1.0,
        weight=1.0,
        token_weights_T=None,
        temperature=1.0,
        max_tokens=len(answer_ids_T),
    )
