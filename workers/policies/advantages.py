"""Advantage stage: how much better an answer did than expected, from the rewards of its group or window.

Finite for every input: a group of one and a group of equal rewards get exactly 0 (P3, P4).
"""

from typing import ClassVar, Literal, Protocol

import numpy as np
from pydantic import Field

from workers.policies.batch import Batch, per_group
from workers.policies.registry import Method, Registry


class Advantage(Protocol):
    rows_needed: ClassVar[int]
    """Usable rows a group must have; 2 when rows are compared with each other."""

    def __call__(self, batch: Batch) -> np.ndarray:
        """(B,) float64; unusable rows 0."""
        ...


ADVANTAGES: Registry[Advantage] = Registry("advantage")

Std = Literal["unbiased", "population", "tutorial", "none"]


def grpo(rewards_G: np.ndarray, *, std: Std = "unbiased", eps: float = 1e-6) -> np.ndarray:
    """Rewards centred within their group and divided by its standard deviation.

    rewards_G: (G,) float64, finite. Returns (G,), without a unit (`none`: reward units).
    `unbiased` divides by std + eps with n - 1, `population` with n, `tutorial` by the unbiased one
    or by 1 below 1e-8 (arXiv:2402.03300) [CODE].
    """
    if len(rewards_G) < 2 or rewards_G.max() == rewards_G.min():
        return np.zeros(len(rewards_G))
    size = len(rewards_G)
    centred_G = rewards_G - np.add.reduce(rewards_G) / size
    # As numpy's own std, to the last bit, which takes the mean once more.
    squares = np.add.reduce(centred_G * centred_G)
    match std:
        case "none":
            return centred_G
        case "population":
            return centred_G / (np.sqrt(squares / size) + eps)
        case "unbiased":
            return centred_G / (np.sqrt(squares / (size - 1)) + eps)
        case "tutorial":
            spread = np.sqrt(squares / (size - 1))
            return centred_G / (spread if spread >= 1e-8 else 1.0)


@ADVANTAGES.register("grpo")
class Grpo(Method):
    """Group-relative advantage (arXiv:2402.03300) [CODE]; verl's eps by default, TRL and PODS use 1e-4."""

    rows_needed: ClassVar[int] = 2

    std: Std = "unbiased"
    eps: float = Field(default=1e-6, ge=0)

    def __call__(self, batch: Batch) -> np.ndarray:
        return per_group(batch, lambda rewards_G: grpo(rewards_G, std=self.std, eps=self.eps))


@ADVANTAGES.register("dr_grpo")
class DrGrpo(Method):
    """Centred only: dividing by the std favours groups that nearly agree (arXiv:2503.20783) [CODE].

    Dr. GRPO also wants `learner.denominator = "fixed"`.
    """

    rows_needed: ClassVar[int] = 2

    def __call__(self, batch: Batch) -> np.ndarray:
        return per_group(batch, lambda rewards_G: grpo(rewards_G, std="none"))
