"""IcePop: tokens on which engine and trainer disagree too much are left out."""

from typing import Literal

import torch

from learner.losses.base import Tokens, masked_difference


def icepop(
    tokens: Tokens, *, low: float, high: float, inside: Literal["ratio", "one"]
) -> torch.Tensor:
    """rho where low <= rho <= high, 0 elsewhere (Ring-1T, arXiv:2510.18855).

    inside `one`: 1 in place of rho, for losses that weigh by it already.
    """
    rho_N = masked_difference(tokens.old_logprobs_N, tokens.rollout_logprobs_N, tokens.kept_N).exp()
    within_N = (rho_N >= low) & (rho_N <= high)
    return torch.where(within_N, rho_N if inside == "ratio" else torch.ones_like(rho_N), 0.0)
