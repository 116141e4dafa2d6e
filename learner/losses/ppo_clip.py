"""PPO's clipped surrogate, with clip-higher and dual clip as options."""

import torch

from learner.losses.base import TokenLosses, Tokens, clipped_surrogate, log_ratios, negated
from learner.objective import Anchor


def ppo_clip(
    tokens: Tokens,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    anchor: Anchor = "rollout",
) -> TokenLosses:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) per token, r = trained / anchor.

    By default the rollout policy itself is the anchor, so no second forward pass is needed and a token
    sampled under an older version is clipped by how far the model has moved since (PPO,
    arXiv:1707.06347; clip-higher: DAPO, arXiv:2503.14476). dual_clip c > 1 bounds the loss of a negative
    advantage by -c A, as a huge ratio would dominate the step (arXiv:1912.09729). A = 0 gives exactly 0.
    """
    ratios_N = log_ratios(tokens, anchor).exp()
    surrogate_N, clipped_N = clipped_surrogate(
        ratios_N, tokens, clip_low=clip_low, clip_high=clip_high
    )
    if dual_clip is not None:
        floor_N = dual_clip * tokens.advantages_N
        beyond_N = (tokens.advantages_N < 0) & (surrogate_N < floor_N)
        surrogate_N = torch.where(beyond_N, floor_N, surrogate_N)
        clipped_N = clipped_N | beyond_N
    return TokenLosses(negated(surrogate_N, tokens), clipped_N & tokens.kept_N)
