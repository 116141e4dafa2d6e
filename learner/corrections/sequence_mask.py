"""Sequence mask: answers on which engine and trainer disagree too much are left out whole."""

from typing import Literal

import torch

from learner.losses.base import MAX_LOG_RATIO, Tokens, masked_difference, row_means, row_sums


def sequence_mask(
    tokens: Tokens,
    *,
    statistic: Literal["geometric_mean", "product", "k3"],
    low: float,
    high: float,
) -> torch.Tensor:
    """1 for the tokens of rows whose statistic lies within [low, high], 0 elsewhere.

    geometric_mean: exp(mean log rho), independent of length (SkyRL: 0.99 to 1.01; verl: 0.999 to 1.001);
    product: rho of the whole answer (TRL: up to 3); k3: mean of rho - 1 - log rho, never negative
    (verl: up to 0.01, with low 0).
    """
    log_rho_N = masked_difference(tokens.old_logprobs_N, tokens.rollout_logprobs_N, tokens.kept_N)
    if statistic == "geometric_mean":
        found_N = row_means(log_rho_N, tokens).exp()
    elif statistic == "product":
        found_N = row_sums(log_rho_N, tokens).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    else:
        found_N = row_means(log_rho_N.exp() - 1.0 - log_rho_N, tokens)
    return ((found_N >= low) & (found_N <= high)).to(log_rho_N.dtype)
