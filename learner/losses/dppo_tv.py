"""DPPO with a total-variation bound: a token is left out once its probability has moved too far."""

import torch

from learner.losses.base import TokenLosses, Tokens, log_ratios


def dppo_tv(tokens: Tokens, *, limit: float, penalty: float) -> TokenLosses:
    """-w A where |p_trained - p_rollout| is within bounds, plus penalty (log w)^2 for every kept token.

    w = trained / rollout. A token is out of bounds when sign(A) (p_trained - p_rollout) > limit: it has
    moved beyond the limit in the direction that its advantage pushes. A ratio bound is tight for likely
    and loose for unlikely tokens; a difference of probabilities is neither. No second forward pass
    (prime-rl's default; DPPO, arXiv:2602.04879).
    """
    log_ratios_N = log_ratios(tokens)
    ratios_N = log_ratios_N.exp()
    with torch.no_grad():
        rollout_N = torch.where(tokens.kept_N, tokens.rollout_logprobs_N, 0.0)
        moved_N = tokens.logprobs_N.exp() - rollout_N.exp()
        outside_N = (tokens.advantages_N.sign() * moved_N > limit) & tokens.kept_N
    surrogate_N = torch.where(outside_N, 0.0, ratios_N * tokens.advantages_N)
    losses_N = penalty * log_ratios_N.square() - surrogate_N
    return TokenLosses(torch.where(tokens.kept_N, losses_N, 0.0), outside_N)
