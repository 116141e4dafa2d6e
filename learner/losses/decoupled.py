"""Decoupled PPO: clip against a proximal policy, correct for the one that sampled."""

from typing import Literal

import torch

from learner.losses.base import (
    TokenLosses,
    Tokens,
    clipped_surrogate,
    log_ratios,
    masked_difference,
    negated,
)


def decoupled(
    tokens: Tokens,
    *,
    proximal: Literal["recompute", "loglinear"],
    clip_low: float,
    clip_high: float,
    behavior_cap: float | None = None,
) -> TokenLosses:
    """-rho min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) per token.

    r = trained / proximal, rho = proximal / rollout; rho carries no gradient (AReaL, arXiv:2505.24298).
    proximal `recompute`: the old policy; at one update a step that is the forward pass at hand.
    `loglinear`: its log-probability is taken to lie, at version v, on the line between rollout (version
    v - a, a the token's age) and trained (version v + 1): log p = log b + a / (a + 1) (log trained - log b),
    without gradients and without another pass. Tokens with rho above behavior_cap are left out.
    """
    if proximal == "recompute":
        rho_log_N = masked_difference(
            tokens.old_logprobs_N, tokens.rollout_logprobs_N, tokens.kept_N
        )
        ratios_N = log_ratios(tokens, "old").exp()
    else:
        whole_N = log_ratios(tokens)
        rho_log_N = (tokens.ages_N / (tokens.ages_N + 1.0)) * whole_N.detach()
        ratios_N = (whole_N - rho_log_N).exp()
    rho_N = rho_log_N.exp()
    surrogate_N, clipped_N = clipped_surrogate(
        ratios_N, tokens, clip_low=clip_low, clip_high=clip_high
    )
    if behavior_cap is not None:
        out_N = rho_N > behavior_cap
        surrogate_N = torch.where(out_N, 0.0, surrogate_N)
        clipped_N = clipped_N | out_N
    return TokenLosses(negated(rho_N * surrogate_N, tokens), clipped_N & tokens.kept_N)
