"""GSPO: one ratio for a whole answer, the geometric mean over its tokens."""

from learner.losses.base import (
    TokenLosses,
    Tokens,
    clipped_surrogate,
    log_ratios,
    negated,
    row_means,
)
from learner.objective import Anchor


def gspo(
    tokens: Tokens, *, clip_low: float, clip_high: float, anchor: Anchor = "rollout"
) -> TokenLosses:
    """-min(s A, clip(s, 1 - clip_low, 1 + clip_high) A) for every token of a row.

    s = exp(mean over the row's kept tokens of log(trained / anchor)), with gradients to each of them.
    With the denominator `seq_mean` the sum over tokens is the paper's sequence loss (arXiv:2507.18071).
    """
    ratios_N = row_means(log_ratios(tokens, anchor), tokens).exp()
    surrogate_N, clipped_N = clipped_surrogate(
        ratios_N, tokens, clip_low=clip_low, clip_high=clip_high
    )
    return TokenLosses(negated(surrogate_N, tokens), clipped_N & tokens.kept_N)
