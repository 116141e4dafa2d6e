"""Dr. GRPO: PPO's surrogate summed over tokens and divided by a constant, so length has no influence."""

from learner.losses.base import TokenLosses, Tokens, clipped_surrogate, log_ratios, negated
from learner.objective import Anchor


def dr_grpo(
    tokens: Tokens, *, clip_low: float, clip_high: float, anchor: Anchor = "rollout"
) -> TokenLosses:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) per token, r = trained / anchor.

    With the denominator `fixed`, which the configuration demands, and advantages R - mean without a
    standard deviation (`policy.advantage`), this is arXiv:2503.20783.
    """
    surrogate_N, clipped_N = clipped_surrogate(
        log_ratios(tokens, anchor).exp(), tokens, clip_low=clip_low, clip_high=clip_high
    )
    return TokenLosses(negated(surrogate_N, tokens), clipped_N & tokens.kept_N)
