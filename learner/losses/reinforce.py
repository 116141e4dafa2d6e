"""REINFORCE: the plain policy gradient, for sampling that is on-policy or corrected for."""

import torch

from learner.losses.base import TokenLosses, Tokens, negated


def reinforce(tokens: Tokens) -> TokenLosses:
    """-A log(trained) per token (Williams 1992). No ratio, no bound: stale tokens need a correction."""
    losses_N = negated(tokens.advantages_N * tokens.logprobs_N, tokens)
    return TokenLosses(losses_N, torch.zeros_like(tokens.kept_N))
