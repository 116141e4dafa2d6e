"""Reward stage: a chain that starts from the score against the target and shapes it row by row."""

from typing import Protocol

import numpy as np

from workers.policies.group import Group
from workers.policies.registry import Method, Registry


class Reward(Protocol):
    def __call__(self, group: Group, rewards_G: np.ndarray) -> np.ndarray:
        """(G,) float64 from the (G,) of the method before it; the first gets the scores.

        NaN leaves the row out.
        """
        ...


REWARDS: Registry[Reward] = Registry("reward")


@REWARDS.register("verified")
class Verified(Method):
    """The score against the target, as it is."""

    def __call__(self, group: Group, rewards_G: np.ndarray) -> np.ndarray:
        return group.scores_G
