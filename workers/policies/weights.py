"""Weight stage: how much each row, or each of its tokens, counts in the loss."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from workers.policies.batch import Batch
from workers.policies.registry import Method, Registry


@dataclass(frozen=True, eq=False)
class Weights:
    """What a weight method decided about a window."""

    rows_B: np.ndarray
    """(B,) float64, not negative; 0 masks the row."""
    tokens: Sequence[np.ndarray] | None = None
    """B arrays of (T,), multiplied with the row's weight."""
    advantages_B: np.ndarray | None = None
    """(B,), when the method recomputes the advantages on what it kept."""
    signals: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    """What it read, (B,) each; goes into the record."""


class Weight(Protocol):
    def __call__(self, batch: Batch, advantages_B: np.ndarray) -> Weights: ...


WEIGHTS: Registry[Weight] = Registry("weight")


@WEIGHTS.register("uniform")
class Uniform(Method):
    """Every row counts once. The same weights as with no policy at all (A1)."""

    def __call__(self, batch: Batch, advantages_B: np.ndarray) -> Weights:
        return Weights(rows_B=np.ones(len(batch)))
