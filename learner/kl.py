"""Divergence from a frozen reference, estimated from the sampled tokens.

Delta = log(trained) - log(reference) of each token. (N,) each, in nats, with gradients.
"""

from collections.abc import Callable

import torch

from learner.losses.base import MAX_LOG_RATIO


def k1(difference_N: torch.Tensor) -> torch.Tensor:
    """Delta. Its own gradient is zero on average and regularises nothing; so the gradient is that of the
    divergence: Delta times the gradient of log(trained), which is k2's."""
    square_N = difference_N.square() / 2.0
    return square_N + (difference_N - square_N).detach()


def k2(difference_N: torch.Tensor) -> torch.Tensor:
    """Delta^2 / 2: biased, its gradient is on average that of KL(trained || reference)."""
    return difference_N.square() / 2.0


def k3(difference_N: torch.Tensor) -> torch.Tensor:
    """e^-Delta + Delta - 1: unbiased, never negative (joschu.net/blog/kl-approx)."""
    return (-difference_N).exp() + difference_N - 1.0


ESTIMATORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


def divergence(name: str, logprobs_N: torch.Tensor, reference_N: torch.Tensor) -> torch.Tensor:
    """(N,) estimate per token; differences are limited as in the losses."""
    difference_N = (logprobs_N - reference_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return ESTIMATORS[name](difference_N)
