"""What every loss is given and gives back.

Legend: N answer tokens of a micro-batch, all its rows in a line.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

MAX_LOG_RATIO = 20.0
"""Log-ratios are limited to this before exp: e^20 is far outside any clip, and finite in float32."""


@dataclass(frozen=True)
class Tokens:
    """Ragged rows laid end to end; no padding, so nothing to mask but what a policy masked."""

    logprobs_N: torch.Tensor
    """Under the model being trained, with gradients."""
    rollout_logprobs_N: torch.Tensor
    """Under the distribution sampled from; anything, even NaN, where `kept_N` is false."""
    advantages_N: torch.Tensor
    kept_N: torch.Tensor
    """bool: weight above 0."""
    rows_N: torch.Tensor
    """int64: which row of the micro-batch, 0..rows-1."""
    rows: int


@dataclass(frozen=True)
class TokenLosses:
    losses_N: torch.Tensor
    """Before weights and denominator; 0 where masked."""
    log_ratios_N: torch.Tensor
    """log(trained / rollout), detached; 0 where masked."""
    clipped_N: torch.Tensor
    """bool: the clip stopped the gradient of this token."""


class Loss(Protocol):
    def __call__(self, tokens: Tokens) -> TokenLosses: ...


def log_ratios(tokens: Tokens) -> torch.Tensor:
    """log(trained / rollout) per token with gradients, replaced by 0 where masked, before any exp.

    A masked token with a rollout log-probability of -200 would otherwise give 0 x inf = NaN in
    backward while the loss itself looks finite.
    """
    difference_N = tokens.logprobs_N - tokens.rollout_logprobs_N
    zero = torch.zeros((), dtype=difference_N.dtype, device=difference_N.device)
    kept_N = torch.where(tokens.kept_N, difference_N, zero)
    return kept_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
