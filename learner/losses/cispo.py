"""CISPO: REINFORCE with a bounded importance weight, so that no token loses its gradient."""

from learner.losses.base import TokenLosses, Tokens, log_ratios, negated
from learner.objective import Anchor


def cispo(tokens: Tokens, *, low: float, high: float, anchor: Anchor = "rollout") -> TokenLosses:
    """-sg(clip(r, low, high)) A log(trained) per token, r = trained / anchor (arXiv:2506.13585).

    Anchored at the rollout: at one update a step the ratio to the old policy is 1 and would never bite.
    A clipped token is one whose weight was bounded; it still has a gradient.
    """
    ratios_N = log_ratios(tokens, anchor).detach().exp()
    bounded_N = ratios_N.clamp(low, high)
    surrogate_N = bounded_N * tokens.advantages_N * tokens.logprobs_N
    return TokenLosses(negated(surrogate_N, tokens), (bounded_N != ratios_N) & tokens.kept_N)
