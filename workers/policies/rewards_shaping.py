"""Rewards shaped after the verdict: length, scale, process scores."""

from collections.abc import Mapping

import numpy as np
from pydantic import Field, model_validator

from workers.policies.group import SLACK, Group
from workers.policies.registry import Method
from workers.policies.rewards import REWARDS


def overlong_penalty(lengths_G: np.ndarray, max_tokens: int, buffer: int) -> np.ndarray:
    """0 up to max_tokens - buffer, falling linearly to -1 at max_tokens and beyond, (G,)."""
    return np.clip((max_tokens - buffer - lengths_G) / buffer, -1.0, 0.0)


@REWARDS.register("overlong")
class Overlong(Method):
    """Adds the soft overlong punishment (DAPO, arXiv:2503.14476, C2) [TEXT].

    DAPO adds it to rewards of -1 and 1; with 0 and 1 a `factor` of .5 is the same trade.
    """

    max_tokens: int = Field(ge=1)
    buffer: int = Field(ge=1)
    factor: float = Field(default=1.0, ge=0)

    @model_validator(mode="after")
    def _fits(self) -> "Overlong":
        if self.buffer > self.max_tokens:
            raise ValueError(f"buffer {self.buffer}: expected at most max_tokens {self.max_tokens}")
        return self

    def __call__(self, group: Group, rewards_G: np.ndarray) -> np.ndarray:
        return rewards_G + self.factor * overlong_penalty(
            group.lengths_G, self.max_tokens, self.buffer
        )


@REWARDS.register("affine")
class Affine(Method):
    """scale * r + shift."""

    scale: float = 1.0
    shift: float = 0.0

    def __call__(self, group: Group, rewards_G: np.ndarray) -> np.ndarray:
        return self.scale * rewards_G + self.shift


@REWARDS.register("process")
class Process(Method):
    """share * P + (1 - share) * r: mixed first, normalised afterwards (C5) [SEED].

    P is the verdict's component of that name; without one it is 0 and the row is flagged
    `process_missing`. From share = 1 / (1 + dP) on, a wrong answer with a better process can outrank a
    right one: `process_outranks` is then 1 for the group.
    """

    share: float = Field(default=0.5, ge=0, le=1)
    component: str = "process"

    def __call__(self, group: Group, rewards_G: np.ndarray) -> np.ndarray:
        return self.share * self._process(group) + (1 - self.share) * rewards_G

    def _process(self, group: Group) -> np.ndarray:
        return np.array([c.get(self.component, 0.0) for c in group.components], dtype=np.float64)

    def signals(self, group: Group) -> Mapping[str, np.ndarray]:
        process_G = self._process(group)
        right_G = group.usable_G & (group.outcomes_G >= group.success - SLACK)
        wrong_G = group.usable_G & ~right_G
        both = bool(right_G.any() and wrong_G.any())
        best = process_G[wrong_G].max(initial=0.0) - process_G[right_G].min(initial=1.0)
        # lambda dP >= 1 - lambda.
        outranks = both and self.share * best >= 1 - self.share - SLACK
        return {
            "process": process_G,
            "process_missing": np.array([self.component not in c for c in group.components], float),
            "process_outranks": np.full(group.size, float(outranks)),
        }
