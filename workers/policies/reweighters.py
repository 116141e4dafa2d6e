"""Reweighters: a weight per row or token, one on average over the usable rows or tokens of the window.

An average of one preserves the step only where the scores do not go along with the gradient: rows
with advantage 0 absorb weight (A7), so the sums of |w A| and |A| are worth comparing.
Shape legend: B rows of the window, U usable rows, T tokens of one.
"""

from typing import ClassVar

import numpy as np
from pydantic import Field, model_validator

from workers.policies.actuators import ACTUATORS, RESPONSES, TOKENS, over_usable, row_scores
from workers.policies.batch import Batch, end_to_end
from workers.policies.registry import Method
from workers.policies.scorers import Grain, Scores
from workers.policies.weights import Weights


def power_weights(scores_U: np.ndarray, exponent: float, eps: float) -> np.ndarray:
    """(|score| + eps)^exponent over its mean, (U,)."""
    raw_U = (np.abs(scores_U) + eps) ** exponent
    return raw_U / raw_U.mean() if len(raw_U) else raw_U


def softmax_weights(scores_U: np.ndarray, temperature: float) -> np.ndarray:
    """U * softmax(score / temperature), (U,); 1 for one row."""
    if len(scores_U) <= 1:
        return np.ones(len(scores_U))
    raw_U = np.exp((scores_U - scores_U.max()) / temperature)
    return len(scores_U) * raw_U / raw_U.sum()


def band_weights(scores_U: np.ndarray, low: float, high: float, boost: float) -> np.ndarray:
    """`boost` inside the quantile band, limits included, 1 outside, over its mean, (U,)."""
    if len(scores_U) <= 1:
        return np.ones(len(scores_U))
    lower, upper = np.quantile(scores_U, [low, high])
    raw_U = np.where((scores_U >= lower) & (scores_U <= upper), boost, 1.0)
    return raw_U / raw_U.mean()


@ACTUATORS.register("power")
class Power(Method):
    """(|score| + 1e-8)^.5, as prioritised replay has it (arXiv:1511.05952), without its beta (A7) [CODE]."""

    accepts: ClassVar[frozenset[Grain]] = RESPONSES

    exponent: float = Field(default=0.5, gt=0)
    eps: float = Field(default=1e-8, gt=0)

    def __call__(self, batch: Batch, scores: Scores, advantages_B: np.ndarray) -> Weights:
        values_U = row_scores(scores)[batch.usable_B]
        return Weights(rows_B=over_usable(batch, power_weights(values_U, self.exponent, self.eps)))


@ACTUATORS.register("softmax")
class Softmax(Method):
    """N softmax(score / T) over the window (A8) [CODE]."""

    accepts: ClassVar[frozenset[Grain]] = RESPONSES

    temperature: float = Field(default=1.0, gt=0)

    def __call__(self, batch: Batch, scores: Scores, advantages_B: np.ndarray) -> Weights:
        values_U = row_scores(scores)[batch.usable_B]
        return Weights(rows_B=over_usable(batch, softmax_weights(values_U, self.temperature)))


@ACTUATORS.register("quantile_band")
class QuantileBand(Method):
    """Twice the weight between the window's quartiles, limits included (A9) [CODE].

    With 0/1 rewards it does nothing, or raises the commoner outcome.
    """

    accepts: ClassVar[frozenset[Grain]] = RESPONSES

    low: float = Field(default=0.25, ge=0, le=1)
    high: float = Field(default=0.75, ge=0, le=1)
    boost: float = Field(default=2.0, gt=0)

    @model_validator(mode="after")
    def _ordered(self) -> "QuantileBand":
        if self.low > self.high:
            raise ValueError(f"low {self.low} and high {self.high}: expected low <= high")
        return self

    def __call__(self, batch: Batch, scores: Scores, advantages_B: np.ndarray) -> Weights:
        values_U = row_scores(scores)[batch.usable_B]
        return Weights(
            rows_B=over_usable(batch, band_weights(values_U, self.low, self.high, self.boost))
        )


@ACTUATORS.register("token_blend")
class TokenBlend(Method):
    """alpha * pi + (1 - alpha) per token, over its mean (A6).

    As published (AR-Lopti, arXiv:2505.12929) it multiplies the advantage without the mean:
    `normalise = false`, alpha .2 alone or .3 with Lopti [CODE].
    """

    accepts: ClassVar[frozenset[Grain]] = TOKENS

    alpha: float = Field(default=0.5, ge=0, le=1)
    normalise: bool = True

    def __call__(self, batch: Batch, scores: Scores, advantages_B: np.ndarray) -> Weights:
        rows = end_to_end(list(scores) if isinstance(scores, np.ndarray) else scores)
        tokens = rows.tokens
        tokens *= self.alpha
        tokens += 1 - self.alpha
        if self.normalise:
            if batch.usable_B.all():
                total = tokens.sum(dtype=np.float64)
            else:
                usable_N = np.repeat(batch.usable_B, batch.lengths_B)
                total = tokens.sum(where=usable_N, dtype=np.float64)
            count = int(batch.lengths_B[batch.usable_B].sum())
            if count and total > 0:
                tokens /= np.float32(total / count)
        return Weights(rows_B=batch.usable_B.astype(np.float64), tokens=rows)
