"""What selectors and reweighters share: they turn the scores of a window into weights of its rows."""

from typing import ClassVar, Protocol

import numpy as np

from workers.policies.batch import Batch
from workers.policies.registry import Registry
from workers.policies.scorers import Grain, Scores
from workers.policies.weights import Weights


class Actuator(Protocol):
    accepts: ClassVar[frozenset[Grain]]
    """Which scores it can act on."""

    def __call__(self, batch: Batch, scores: Scores, advantages_B: np.ndarray) -> Weights: ...


ACTUATORS: Registry[Actuator] = Registry("weight.actuator")

ROWS: frozenset[Grain] = frozenset({"response", "group"})
RESPONSES: frozenset[Grain] = frozenset({"response"})
TOKENS: frozenset[Grain] = frozenset({"token"})


def row_scores(scores: Scores) -> np.ndarray:
    """(B,) scores; which kind comes is settled when the program is built."""
    assert isinstance(scores, np.ndarray), "an actuator of rows was given token scores"
    return scores


def over_usable(batch: Batch, values_U: np.ndarray) -> np.ndarray:
    """Weights of the usable rows (U,) spread over (B,); 0 elsewhere."""
    out_B = np.zeros(len(batch))
    out_B[batch.usable_B] = values_U
    return out_B
