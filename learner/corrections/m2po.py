"""M2PO: leave out the tokens that make the second moment of the log-ratios too large."""

import torch

from learner.losses.base import Tokens, masked_difference


def m2po(tokens: Tokens, *, threshold: float) -> torch.Tensor:
    """0 for the fewest tokens, largest (log rho)^2 first, so that the mean of the rest is below threshold.

    Over all tokens of an update, so `tokens` must be the whole of it (arXiv:2510.01161; AReaL: 0.04).
    Of equal squares the earlier token is kept.
    """
    squares_N = masked_difference(
        tokens.old_logprobs_N, tokens.rollout_logprobs_N, tokens.kept_N
    ).square()
    kept = tokens.kept_N.nonzero().squeeze(1)
    ascending_K, order_K = squares_N[kept].double().sort(stable=True)
    counts_K = torch.arange(1, len(kept) + 1, device=kept.device)
    # Means of ascending values ascend, so those below the threshold are the first ones.
    below_K = ascending_K.cumsum(0) / counts_K < threshold
    factors_N = torch.zeros_like(squares_N)
    factors_N[kept[order_K[below_K]]] = 1.0
    return factors_N
