"""Off-policy sequence mask: bad answers that the model no longer gives are left out."""

import torch

from learner.losses.base import Tokens, log_ratios, row_means


def opsm(tokens: Tokens, *, threshold: float) -> torch.Tensor:
    """0 for tokens with A < 0 of rows whose mean log(rollout / trained) is above threshold, 1 elsewhere.

    Pushing down what has become unlikely teaches little and costs stability, while good answers stay
    useful however old (DeepSeek-V3.2, arXiv:2512.02556; slime: 1e-4).
    """
    drift_N = row_means(-log_ratios(tokens).detach(), tokens)
    out_N = (tokens.advantages_N < 0) & (drift_N > threshold)
    return torch.where(out_N, 0.0, 1.0).to(drift_N.dtype)
