"""Discounted Beta-Bernoulli advantage: a baseline per prompt that outlives its visits (arXiv:2603.18444)."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from pydantic import Field

from broker.messages import Json
from workers.policies.advantages import ADVANTAGES
from workers.policies.batch import Batch
from workers.policies.group import SLACK, Group
from workers.policies.registry import Method

LEAST = 1e-3
"""Of alpha and beta, so that a discount of 0 leaves p between 0 and 1."""


def update(
    prior: tuple[float, float], solved: int, graded: int, discount: float
) -> tuple[float, float]:
    """(alpha, beta) after a visit: both discounted, then the counts added."""
    alpha, beta = prior
    return (
        max(discount * alpha + solved, LEAST),
        max(discount * beta + graded - solved, LEAST),
    )


def standardised(success: np.ndarray, p: float) -> np.ndarray:
    """(X - p) / sqrt(p (1 - p)), for p in (0, 1)."""
    return (success - p) / np.sqrt(p * (1 - p))


@ADVANTAGES.register("dbb")
class Dbb(Method):
    """All-wrong and all-right groups have a signal too, against the prompt's own past (C3) [TEXT].

    The counts take the visit in before the estimate is read. Rewards must be 0 or 1: successes of
    the raw outcome are what is counted. discount: .5 for 1.7 B, .75 for 8 B parameters.
    """

    rows_needed: ClassVar[int] = 1

    discount: float = Field(default=0.5, ge=0, le=1)

    def observe(self, memory: Json, group: Group) -> Mapping[str, float]:
        solved, graded = group.successes()
        if not graded:
            return {}
        found = memory.get(group.sample_key, (1.0, 1.0))
        assert isinstance(found, list | tuple)  # only this method writes its memory
        alpha, beta = update((found[0], found[1]), solved, graded, self.discount)
        memory[group.sample_key] = [alpha, beta]
        return {"dbb_p": alpha / (alpha + beta)}

    def __call__(self, batch: Batch) -> np.ndarray:
        out_B = np.zeros(len(batch))
        for number, group in enumerate(batch.groups):
            if "dbb_p" in group.facts:
                success_G = (group.outcomes_G >= group.success - SLACK).astype(np.float64)
                out_B[batch.rows(number)] = standardised(success_G, group.facts["dbb_p"])
        return np.where(batch.usable_B, out_B, 0.0)
