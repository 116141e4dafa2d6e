"""Further advantage estimators that need no memory: leave-one-out, likelihood, window-normalised, mixed.

Shape legend: B rows of the window, G rows of one group.
"""

from typing import ClassVar

import numpy as np
from pydantic import Field

from workers.policies.advantages import ADVANTAGES, Std, grpo
from workers.policies.batch import Batch, per_group
from workers.policies.registry import Method


def leave_one_out(rewards_G: np.ndarray) -> np.ndarray:
    """Each reward minus the mean of the others, (G,); 0 for one row."""
    size = len(rewards_G)
    if size < 2 or rewards_G.max() == rewards_G.min():
        return np.zeros(size)
    return (rewards_G - rewards_G.mean()) * size / (size - 1)


def over_mean(rewards_G: np.ndarray) -> np.ndarray:
    """Centred rewards over their mean, (G,); 0 where the mean is not positive."""
    mean = rewards_G.mean()
    if mean <= 0 or rewards_G.max() == rewards_G.min():
        return np.zeros(len(rewards_G))
    return (rewards_G - mean) / mean


@ADVANTAGES.register("rloo")
class Rloo(Method):
    """Leave-one-out baseline (RLOO, arXiv:2402.14740) [CODE]."""

    rows_needed: ClassVar[int] = 2

    def __call__(self, batch: Batch) -> np.ndarray:
        return per_group(batch, leave_one_out)


@ADVANTAGES.register("maxrl")
class MaxRl(Method):
    """Centred over the mean reward: the rarer a success, the more it counts (MaxRL) [SEC].

    Follows the likelihood of a success instead of its probability; rewards must not be negative.
    """

    rows_needed: ClassVar[int] = 2

    def __call__(self, batch: Batch) -> np.ndarray:
        return per_group(batch, over_mean)


@ADVANTAGES.register("reinforce_pp")
class ReinforcePp(Method):
    """Centred and scaled over the whole window, per response (REINFORCE++, arXiv:2501.03262) [SEC].

    A group of one has an advantage here, since its baseline is the window.
    """

    rows_needed: ClassVar[int] = 1

    eps: float = Field(default=1e-8, ge=0)

    def __call__(self, batch: Batch) -> np.ndarray:
        out_B = np.zeros(len(batch))
        out_B[batch.usable_B] = grpo(batch.rewards_B[batch.usable_B], eps=self.eps)
        return out_B


@ADVANTAGES.register("batch_std")
class BatchStd(Method):
    """Centred within the group, divided by the std of the window's centred rewards [SEC].

    Neither favours groups that nearly agree, as the group's own std does, nor depends on the
    scale of the rewards.
    """

    rows_needed: ClassVar[int] = 2

    eps: float = Field(default=1e-8, ge=0)

    def __call__(self, batch: Batch) -> np.ndarray:
        centred_B = per_group(batch, lambda rewards_G: grpo(rewards_G, std="none"))
        if not centred_B.any():
            return centred_B
        return centred_B / (centred_B[batch.usable_B].std() + self.eps)


@ADVANTAGES.register("process_outcome")
class ProcessOutcome(Method):
    """Process and outcome normalised each, then mixed: free of their scales (C5) [SEED].

    The process score is the verdict's component of that name; without one it is 0.
    """

    rows_needed: ClassVar[int] = 2

    share: float = Field(default=0.5, ge=0, le=1)
    """lambda: of the process."""
    component: str = "process"
    std: Std = "unbiased"
    eps: float = Field(default=1e-6, ge=0)

    def __call__(self, batch: Batch) -> np.ndarray:
        scores = [c.get(self.component, 0.0) for group in batch.groups for c in group.components]
        process_B = np.array(scores, dtype=np.float64)
        outcome_B = per_group(batch, lambda r_G: grpo(r_G, std=self.std, eps=self.eps))
        out_B = (1 - self.share) * outcome_B
        for number in range(len(batch.groups)):
            rows = np.arange(batch.starts[number], batch.starts[number + 1])
            rows = rows[batch.usable_B[rows]]
            out_B[rows] += self.share * grpo(process_B[rows], std=self.std, eps=self.eps)
        return out_B
