"""Selectors: keep a row (weight 1) or mask it (weight 0).

Ties go to the lower row, so the same window always keeps the same rows (P5); rows without a usable
reward are never kept (P1). An empty window keeps nothing and fails nowhere (P7).
Shape legend: B rows of the window, G rows of one group, U usable rows.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from workers.policies.actuators import ACTUATORS, RESPONSES, ROWS, over_usable, row_scores
from workers.policies.advantages import Std, grpo
from workers.policies.batch import Batch
from workers.policies.group import SLACK
from workers.policies.registry import Method
from workers.policies.scorers import Grain, Scores
from workers.policies.weights import Weights

ADAPTIVE_KS = (8, 8, 6, 4)
LEAST_MEANS = 64
"""Groups seen before quarters of difficulty mean anything [PROP]."""
KEPT_MEANS = 2048

Renormalise = Literal["subset", "group"]
"""Advantages of the kept rows: recomputed among themselves, or as they were in the whole group."""


def highest(scores: np.ndarray, count: int) -> np.ndarray:
    """Which of the scores are the `count` highest, bool; ties go to the lower index."""
    kept = np.zeros(len(scores), dtype=bool)
    kept[np.argsort(-scores, kind="stable")[:count]] = True
    return kept


def share_of(total: int, fraction: float) -> int:
    """max(1, round(fraction * total)), halves to even, and none of none (A3, A5)."""
    return min(total, max(1, round(fraction * total))) if total else 0


def within(scores: np.ndarray, low: float, high: float, *, inclusive: bool) -> np.ndarray:
    """Strictly between the limits, or with them, bool. The slack makes rates compare as counts (P8)."""
    slack = SLACK if inclusive else -SLACK
    return (scores > low - slack) & (scores < high + slack)


def max_variance(rewards_NG: np.ndarray, fraction: float) -> np.ndarray:
    """Of each group, the `a` lowest and `n - a` highest rewards of the largest population variance (PODS).

    rewards_NG: of N groups, or (G,) of one; bool of that shape. n = max(1, round(fraction * G)); among
    equal variances the fewest lowest win, so that equal rewards keep the last n rows
    (arXiv:2504.13818) [CODE].
    """
    size = rewards_NG.shape[-1]
    count = share_of(size, fraction)
    order_NG = np.argsort(rewards_NG, axis=-1, kind="stable")
    # Centred, so that the difference of the moments below does not cancel.
    centred_NG = rewards_NG - rewards_NG.mean(axis=-1, keepdims=True)
    ascending_NG = np.take_along_axis(centred_NG, order_NG, axis=-1)
    none_N1 = np.zeros((*rewards_NG.shape[:-1], 1))
    sums = np.concatenate([none_N1, np.cumsum(ascending_NG, axis=-1)], axis=-1)
    squares = np.concatenate([none_N1, np.cumsum(ascending_NG**2, axis=-1)], axis=-1)
    low = np.arange(count + 1)
    high = size - (count - low)
    means = (sums[..., low] + sums[..., -1:] - sums[..., high]) / count
    variances = (squares[..., low] + squares[..., -1:] - squares[..., high]) / count - means**2
    # Float error must not make a later of two equal variances win.
    good = variances >= variances.max(axis=-1, keepdims=True) - 1e-12
    best_N1 = np.argmax(good, axis=-1)[..., None]
    place_G = np.arange(size)
    kept_NG = np.zeros(rewards_NG.shape, dtype=bool)
    chosen_NG = (place_G < best_N1) | (place_G >= high[best_N1])
    np.put_along_axis(kept_NG, order_NG, chosen_NG, axis=-1)
    return kept_NG


def _by_size(batch: Batch) -> list[np.ndarray]:
    """Row numbers of the usable rows, (N, G) for each number G of them that groups have."""
    rows = np.flatnonzero(batch.usable_B)
    ends = np.searchsorted(rows, batch.starts)
    firsts, counts = ends[:-1], np.diff(ends)
    sizes = np.unique(counts[counts > 0])
    return [rows[firsts[counts == size][:, None] + np.arange(size)] for size in sizes]


def _per_group(batch: Batch, choose: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Apply a choice (row numbers -> bool) to the usable rows of each group; (B,) bool."""
    kept_B = np.zeros(len(batch), dtype=bool)
    for number in range(len(batch.groups)):
        rows = np.arange(batch.starts[number], batch.starts[number + 1])
        rows = rows[batch.usable_B[rows]]
        if len(rows):
            kept_B[rows] = choose(rows)
    return kept_B


def _renormalised(batch: Batch, kept_B: np.ndarray, std: Std, eps: float) -> np.ndarray:
    """Advantages of the kept rows among themselves, (B,); 0 elsewhere."""
    out_B = np.zeros(len(batch))
    for number in range(len(batch.groups)):
        rows = np.arange(batch.starts[number], batch.starts[number + 1])
        rows = rows[kept_B[rows]]
        out_B[rows] = grpo(batch.rewards_B[rows], std=std, eps=eps)
    return out_B


@ACTUATORS.register("threshold_band")
class ThresholdBand(Method):
    """Keeps scores strictly between two limits; whole groups with group_solve_rate (A2) [CODE].

    K = 5 and (.2, .8) keep two or three solved answers. Online difficulty filtering
    (arXiv:2504.03380) has the limits included.
    """

    accepts: ClassVar[frozenset[Grain]] = ROWS

    low: float = 0.2
    high: float = 0.8
    inclusive: bool = False

    @model_validator(mode="after")
    def _ordered(self) -> "ThresholdBand":
        if self.low >= self.high:
            raise ValueError(f"low {self.low} and high {self.high}: expected low < high")
        return self

    def __call__(self, batch: Batch, scores: Scores, advantages_B: np.ndarray) -> Weights:
        kept_B = within(row_scores(scores), self.low, self.high, inclusive=self.inclusive)
        return Weights(rows_B=(kept_B & batch.usable_B).astype(np.float64))


@ACTUATORS.register("max_variance")
class MaxVariance(Method):
    """Keeps the most spread rows of each group (PODS, arXiv:2504.13818) [CODE].

    `subset` recomputes advantages on what is kept, as PODS does; `group` keeps those of the whole
    group, as DataFlex-RL does, whose sum then depends on difficulty (A3).
    """

    accepts: ClassVar[frozenset[Grain]] = RESPONSES

    fraction: float = Field(default=0.5, gt=0, le=1)
    renormalise: Renormalise = "subset"
    std: Std = "unbiased"
    eps: float = Field(default=1e-4, ge=0)

    def __call__(self, batch: Batch, scores: Scores, advantages_B: np.ndarray) -> Weights:
        values_B = row_scores(scores)
        kept_B = np.zeros(len(batch), dtype=bool)
        for rows_NG in _by_size(batch):
            kept_B[rows_NG] = max_variance(values_B[rows_NG], self.fraction)
        again_B = None
        if self.renormalise == "subset":
            again_B = _renormalised(batch, kept_B, self.std, self.eps)
        return Weights(rows_B=kept_B.astype(np.float64), advantages_B=again_B)


@ACTUATORS.register("group_top_k")
class GroupTopK(Method):
    """Keeps the k highest scores of each group; a group of at most k whole (GFPO, arXiv:2508.09726) [TEXT].

    `subset` recomputes advantages on what is kept with the population std, as GFPO does; with 0/1
    rewards and token_efficiency, k right answers then leave no signal (A4). `group`: DataFlex-RL.
    """

    accepts: ClassVar[frozenset[Grain]] = RESPONSES

    k: int | Literal["adaptive"] = 3
    """`adaptive`: by how hard the group is among all seen (GFPO's 8, 8, 6, 4), see `adaptive_k`."""
    renormalise: Renormalise = "subset"
    std: Std = "population"
    eps: float = Field(default=1e-6, ge=0)

    @model_validator(mode="after")
    def _positive(self) -> "GroupTopK":
        if isinstance(self.k, int) and self.k < 1:
            raise ValueError(f"k {self.k}: expected at least 1, or adaptive")
        return self

    def __call__(self, batch: Batch, scores: Scores, advantages_B: np.ndarray) -> Weights:
        values_B, fixed = row_scores(scores), self.k
        if isinstance(fixed, int):
            kept_B = _per_group(batch, lambda rows: highest(values_B[rows], fixed))
        else:
            means = _seen_means(batch)
            kept_B = _per_group(
                batch,
                lambda rows: highest(
                    values_B[rows], adaptive_k(float(batch.rewards_B[rows].mean()), means)
                ),
            )
        again_B = None
        if self.renormalise == "subset":
            again_B = _renormalised(batch, kept_B, self.std, self.eps)
        return Weights(rows_B=kept_B.astype(np.float64), advantages_B=again_B)


def adaptive_k(mean: float, means: Sequence[float]) -> int:
    """How many answers of a group with this mean reward to keep: 8, 8, 6, 4 from hardest to easiest quarter.

    means: of the groups seen; 8 while they are too few to tell quarters (arXiv:2508.09726) [TEXT].
    """
    if len(means) < LEAST_MEANS:
        return ADAPTIVE_KS[0]
    quarters = np.quantile(means, [0.25, 0.5, 0.75])
    return ADAPTIVE_KS[int(np.searchsorted(quarters, mean, side="left"))]


def _seen_means(batch: Batch) -> Sequence[float]:
    """Mean rewards of the newest groups, this window's included; exact where GFPO has a t-digest."""
    known = batch.memory.get("means", [])
    assert isinstance(known, list)  # only this method writes its memory
    parts = [
        batch.rewards_B[batch.rows(g)][batch.usable_B[batch.rows(g)]]
        for g in range(len(batch.groups))
    ]
    means = [*known, *(float(part.mean()) for part in parts if len(part))][-KEPT_MEANS:]
    batch.memory["means"] = means
    return means


@ACTUATORS.register("top_fraction")
class TopFraction(Method):
    """Keeps a share of the whole window's rows, highest scores first (A5) [CODE]."""

    accepts: ClassVar[frozenset[Grain]] = RESPONSES

    fraction: float = Field(default=0.5, gt=0, le=1)

    def __call__(self, batch: Batch, scores: Scores, advantages_B: np.ndarray) -> Weights:
        values_U = row_scores(scores)[batch.usable_B]
        kept_U = highest(values_U, share_of(len(values_U), self.fraction))
        return Weights(rows_B=over_usable(batch, kept_U.astype(np.float64)))
