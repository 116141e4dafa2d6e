"""PPO's clipped surrogate on trained / rollout, with an upper bound of its own (clip-higher)."""

import torch

from learner.losses.base import TokenLosses, Tokens, log_ratios


def ppo_clip(tokens: Tokens, *, clip_low: float, clip_high: float) -> TokenLosses:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) per token, r = trained / rollout.

    The rollout policy itself is the anchor, so no second forward pass is needed and a token
    sampled under an older version is clipped by how far the model has moved since (PPO,
    arXiv:1707.06347; clip-higher: DAPO, arXiv:2503.14476). A = 0 gives exactly 0.
    """
    log_ratios_N = log_ratios(tokens)
    ratios_N = log_ratios_N.exp()
    plain_N = ratios_N * tokens.advantages_N
    bounded_N = ratios_N.clamp(1.0 - clip_low, 1.0 + clip_high) * tokens.advantages_N
    losses_N = torch.where(tokens.kept_N, -torch.minimum(plain_N, bounded_N), 0.0)
    return TokenLosses(losses_N, log_ratios_N.detach(), (bounded_N < plain_N).detach())
