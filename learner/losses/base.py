"""What every loss is given and gives back.

Legend: N answer tokens of a micro-batch, all its rows in a line. Names of policies: trained = the model as
it is now, old = the same model as the step began, rollout = the distribution the token was sampled from.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from learner.objective import Anchor

MAX_LOG_RATIO = 20.0
"""Log-ratios are limited to this before exp: e^20 is far outside any clip, and finite in float32."""


@dataclass(frozen=True)
class Tokens:
    """Ragged rows laid end to end; no padding, so nothing to mask but what a policy masked."""

    logprobs_N: torch.Tensor
    """Under the model being trained, with gradients."""
    old_logprobs_N: torch.Tensor
    """Under the model as the step began, without gradients."""
    rollout_logprobs_N: torch.Tensor
    """Under the distribution sampled from; anything, even NaN, where `kept_N` is false."""
    advantages_N: torch.Tensor
    kept_N: torch.Tensor
    """bool: weight above 0."""
    ages_N: torch.Tensor
    """How many versions before the one the step starts from the token was sampled by; 0: by that one."""
    rows_N: torch.Tensor
    """int64: which row of the micro-batch, 0..rows-1."""
    rows: int


@dataclass(frozen=True)
class TokenLosses:
    losses_N: torch.Tensor
    """Before weights and denominator; 0 where masked."""
    clipped_N: torch.Tensor
    """bool: a bound of the loss stopped or changed the gradient of this token."""


class Loss(Protocol):
    def __call__(self, tokens: Tokens) -> TokenLosses: ...


def masked_difference(
    left_N: torch.Tensor, right_N: torch.Tensor, kept_N: torch.Tensor
) -> torch.Tensor:
    """left - right where kept, limited to MAX_LOG_RATIO; 0 elsewhere, before any exp.

    A masked token with a rollout log-probability of -200 would otherwise give 0 x inf = NaN in
    backward while the loss itself looks finite.
    """
    difference_N = left_N - right_N
    kept = torch.where(kept_N, difference_N, torch.zeros_like(difference_N))
    return kept.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def log_ratios(tokens: Tokens, anchor: Anchor = "rollout") -> torch.Tensor:
    """log(trained / anchor) per token with gradients, 0 where masked."""
    below_N = tokens.rollout_logprobs_N if anchor == "rollout" else tokens.old_logprobs_N
    return masked_difference(tokens.logprobs_N, below_N, tokens.kept_N)


def row_means(values_N: torch.Tensor, tokens: Tokens) -> torch.Tensor:
    """(N,) mean of `values_N`, 0 where masked, over the kept tokens of the token's row; 0 without any."""
    return row_sums(values_N, tokens) / row_sums(tokens.kept_N.to(values_N.dtype), tokens).clamp(1)


def row_sums(values_N: torch.Tensor, tokens: Tokens) -> torch.Tensor:
    """(N,) sum of `values_N` over the token's row."""
    sums_B = values_N.new_zeros(tokens.rows).index_add(0, tokens.rows_N, values_N)
    return sums_B[tokens.rows_N]


def clipped_surrogate(
    ratios_N: torch.Tensor, tokens: Tokens, *, clip_low: float, clip_high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) per token, and where the bound is the lower one."""
    plain_N = ratios_N * tokens.advantages_N
    bounded_N = ratios_N.clamp(1.0 - clip_low, 1.0 + clip_high) * tokens.advantages_N
    return torch.minimum(plain_N, bounded_N), (bounded_N < plain_N).detach()


def negated(surrogate_N: torch.Tensor, tokens: Tokens) -> torch.Tensor:
    """The loss of a surrogate: its negative where kept, 0 elsewhere."""
    return torch.where(tokens.kept_N, -surrogate_N, torch.zeros_like(surrogate_N))
