"""SAPO: a smooth gate in place of a clip, so that the gradient fades instead of stopping."""

import torch

from learner.losses.base import TokenLosses, Tokens, log_ratios, negated
from learner.objective import Anchor


def sapo(
    tokens: Tokens, *, tau_positive: float, tau_negative: float, anchor: Anchor = "rollout"
) -> TokenLosses:
    """-(4 / tau) sigmoid(tau (r - 1)) A per token, r = trained / anchor (arXiv:2511.20347).

    tau is tau_positive where A > 0, tau_negative elsewhere: the larger, the sooner the gradient fades.
    The slope at r = 1 is that of r A. Nothing is ever clipped.
    """
    ratios_N = log_ratios(tokens, anchor).exp()
    taus_N = torch.where(tokens.advantages_N > 0, tau_positive, tau_negative).to(ratios_N.dtype)
    gates_N = 4.0 / taus_N * torch.sigmoid(taus_N * (ratios_N - 1.0))
    losses_N = negated(gates_N * tokens.advantages_N, tokens)
    return TokenLosses(losses_N, torch.zeros_like(tokens.kept_N))
