"""Rows of a micro-batch as tensors: packed for the model, their answer tokens in a line for the loss.

Legend: S input tokens of all rows, N answer tokens of all rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from learner.batch import Row
from learner.packing import Packed, pack


@dataclass(frozen=True)
class Line:
    """The N answer tokens of some rows, end to end."""

    rollout_logprobs_N: torch.Tensor
    advantages_N: torch.Tensor
    coefficients_N: torch.Tensor
    """Weight over denominator: the loss of the step is their product with the token losses, summed."""
    scales_N: torch.Tensor
    """One over the denominator, for terms that weights do not touch."""
    kept_N: torch.Tensor
    ages_N: torch.Tensor
    rows_N: torch.Tensor
    rows: int


@dataclass(frozen=True)
class MicroBatch:
    packed: Packed
    positions_N: torch.Tensor
    """Place in the line of the token before each answer token."""
    answer_ids_N: torch.Tensor
    temperature_N: torch.Tensor
    line: Line


def _concatenated(parts: Sequence[np.ndarray], dtype: type, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(parts).astype(dtype)).to(device)


def answers_in_line(rows: Sequence[Row], scales_B: np.ndarray, device: torch.device) -> Line:
    """What the objective needs to know of the rows beside the model's own probabilities."""
    weights = [row.weights_T() for row in rows]
    counts = [row.tokens for row in rows]

    def line(parts: Sequence[np.ndarray], dtype: type = np.float32) -> torch.Tensor:
        return _concatenated(parts, dtype, device)

    return Line(
        rollout_logprobs_N=line([row.rollout_logprobs_T for row in rows]),
        advantages_N=line([row.advantages_T() for row in rows]),
        coefficients_N=line([w * s for w, s in zip(weights, scales_B, strict=True)]),
        scales_N=line([np.repeat(np.asarray(scales_B, np.float32), counts)]),
        # A row without signal is no part of the loss, whatever its weight.
        kept_N=line(
            [(w > 0) & (row.signal() > 0) for w, row in zip(weights, rows, strict=True)], np.bool_
        ),
        ages_N=line([row.ages() for row in rows]),
        rows_N=line([np.repeat(np.arange(len(rows)), counts)], np.int64),
        rows=len(rows),
    )


def lay_out(rows: Sequence[Row], scales_B: np.ndarray, device: torch.device) -> MicroBatch:
    """One micro-batch. The last answer token is predicted, never read, so not an input."""
    counts = [row.tokens for row in rows]
    inputs = [np.concatenate([row.prompt_ids_P, row.answer_ids_T[:-1]]) for row in rows]
    # Not the prompt's last token: each row chooses its first one from there.
    packed = pack(inputs, device, beginnings=[len(row.prompt_ids_P) - 1 for row in rows])
    positions = [
        end - row.tokens + np.arange(row.tokens)
        for end, row in zip(packed.ends_B, rows, strict=True)
    ]
    temperatures = np.repeat(np.asarray([row.temperature for row in rows], np.float32), counts)
    return MicroBatch(
        packed=packed,
        positions_N=_concatenated(positions, np.int64, device),
        answer_ids_N=_concatenated([row.answer_ids_T for row in rows], np.int64, device),
        temperature_N=torch.from_numpy(temperatures).to(device),
        line=answers_in_line(rows, scales_B, device),
    )
