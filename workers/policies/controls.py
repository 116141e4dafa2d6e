"""Matched controls: keep as much as a selector keeps, but at random; or as much as no selector would (D4).

Seeded by `seed` and the window's number, so that every replay keeps the same rows. Rows kept at random
keep the advantages of their whole group.
Shape legend: B rows of the window.
"""

import hashlib
import math
from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field, PrivateAttr

from broker.errors import BadConfiguration
from broker.messages import Json
from workers.policies.batch import Batch
from workers.policies.combine import Scored, build_weight
from workers.policies.registry import Method
from workers.policies.weights import WEIGHTS, Weights


def rng_of(seed: int, window: int) -> np.random.Generator:
    digest = hashlib.sha256(f"{seed}:{window}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))


def keep_rows(candidates: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` of the candidate row numbers, uniformly."""
    return rng.permutation(candidates)[:count]


def keep_tokens(
    lengths_B: np.ndarray, usable_B: np.ndarray, budget: float, rng: np.random.Generator
) -> np.ndarray:
    """Rows in random order while their tokens fit into the budget, (B,) bool; never above it."""
    kept_B = np.zeros(len(lengths_B), dtype=bool)
    left = budget
    for row in rng.permutation(np.flatnonzero(usable_B)):
        if lengths_B[row] <= left:
            kept_B[row] = True
            left -= float(lengths_B[row])
    return kept_B


class Matched(Method):
    """Base: what it is matched to, and the seed."""

    of: Json
    """The selector, `{scorer, actuator, ...}`."""
    seed: int = 0

    _selector: Scored = PrivateAttr()

    def model_post_init(self, context: object) -> None:
        weight = build_weight(self.of).method
        if not isinstance(weight, Scored):
            raise BadConfiguration(
                f"policy.weight of {self.of!r}: expected a selector with scorer and actuator"
            )
        self._selector = weight

    @property
    def needs(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Those of the selector."""
        return self._selector.needs

    def _selected(self, batch: Batch, advantages_B: np.ndarray) -> np.ndarray:
        """What the selector keeps, (B,) bool."""
        return self._selector(batch, advantages_B).rows_B > 0

    def _affordable(self, batch: Batch, candidates_B: np.ndarray, tokens: float) -> np.ndarray:
        """Candidates at random for the tokens of this window and those not spent before, (B,) bool."""
        left = batch.memory.get("tokens", 0.0)
        budget = tokens + (left if isinstance(left, int | float) else 0.0)
        rng = rng_of(self.seed, batch.window)
        kept_B = keep_tokens(batch.lengths_B, candidates_B, budget, rng)
        batch.memory["tokens"] = budget - float(kept_B @ batch.lengths_B)
        return kept_B


@WEIGHTS.register("matched_random")
class MatchedRandom(Matched):
    """As many rows as the selector keeps, window by window (D4a).

    `batch`: anywhere among the usable rows. `group`: as many in each group, or as many whole
    groups when the selector decides about groups.
    """

    scope: Literal["batch", "group"] = "batch"

    def __call__(self, batch: Batch, advantages_B: np.ndarray) -> Weights:
        selected_B, rng = self._selected(batch, advantages_B), rng_of(self.seed, batch.window)
        rows = np.arange(len(batch))
        if self.scope == "batch":
            kept = keep_rows(rows[batch.usable_B], int(selected_B.sum()), rng)
        elif self._selector.scorer.method.grain == "group":
            kept = self._whole_groups(batch, selected_B, rng)
        else:
            parts = [rows[batch.rows(g)] for g in range(len(batch.groups))]
            found = [
                keep_rows(part[batch.usable_B[part]], int(selected_B[part].sum()), rng)
                for part in parts
            ]
            kept = np.concatenate([*found, rows[:0]])
        return Weights(
            rows_B=np.isin(rows, kept).astype(np.float64),
            signals={"selector": selected_B.astype(np.float64)},
        )

    def _whole_groups(
        self, batch: Batch, selected_B: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        of_rows = batch.group_of_rows()
        usable = np.unique(of_rows[batch.usable_B])
        groups = keep_rows(usable, len(np.unique(of_rows[selected_B])), rng)
        return np.flatnonzero(np.isin(of_rows, groups) & batch.usable_B)


@WEIGHTS.register("matched_tokens")
class MatchedTokens(Matched):
    """Random rows up to the tokens the selector has kept so far; what did not fit is carried on (D4b)."""

    def __call__(self, batch: Batch, advantages_B: np.ndarray) -> Weights:
        selected_B = self._selected(batch, advantages_B)
        kept_B = self._affordable(batch, batch.usable_B, float(selected_B @ batch.lengths_B))
        return Weights(
            rows_B=kept_B.astype(np.float64), signals={"selector": selected_B.astype(np.float64)}
        )


@WEIGHTS.register("matched_rollouts")
class MatchedRollouts(Matched):
    """The selector with extra rollouts, up to the tokens that `uniform` has without them (D4b).

    A share of each window's groups, the first ones, is what `uniform` would have: with share = .5 the
    run asks for twice its `groups_per_step`. Of all groups the selector's rows are kept, at random
    while they fit into the tokens of that share so far; what they fall short of is carried on.
    """

    share: float = Field(default=0.5, gt=0, lt=1)

    def __call__(self, batch: Batch, advantages_B: np.ndarray) -> Weights:
        weights = self._selector(batch, advantages_B)
        selected_B = weights.rows_B > 0
        uniform_B = batch.usable_B & (
            batch.group_of_rows() < math.ceil(self.share * len(batch.groups))
        )
        kept_B = self._affordable(batch, selected_B, float(uniform_B @ batch.lengths_B))
        return replace(
            weights,
            rows_B=np.where(kept_B, weights.rows_B, 0.0),
            signals={
                **weights.signals,
                "selector": selected_B.astype(np.float64),
                "uniform": uniform_B.astype(np.float64),
            },
        )
