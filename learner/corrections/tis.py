"""Truncated importance sampling: weigh by old / rollout, bounded above."""

from typing import Literal

import torch

from learner.losses.base import MAX_LOG_RATIO, Tokens, masked_difference, row_sums


def tis(tokens: Tokens, *, level: Literal["token", "sequence"], cap: float) -> torch.Tensor:
    """min(rho, cap) per token; `sequence`: rho is the product over the row's kept tokens.

    The bound trades variance for bias (fengyao.notion.site/off-policy-rl; verl, open-instruct: cap 2).
    """
    log_rho_N = masked_difference(tokens.old_logprobs_N, tokens.rollout_logprobs_N, tokens.kept_N)
    if level == "sequence":
        log_rho_N = row_sums(log_rho_N, tokens).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return log_rho_N.exp().clamp(max=cap)
