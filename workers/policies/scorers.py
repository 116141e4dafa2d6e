"""Scorers: turn a window's signals into one score per row or per token, for an actuator to act on."""

from typing import ClassVar, Literal, Protocol

import numpy as np

from workers.policies.batch import Batch, end_to_end
from workers.policies.registry import Method, Registry

Grain = Literal["group", "response", "token"]
Scores = np.ndarray | list[np.ndarray]
"""(B,) for group and response, B arrays of (T,) for token."""


class Scorer(Protocol):
    grain: ClassVar[Grain]
    """What a score belongs to; a group's score is repeated in its rows."""

    def __call__(self, batch: Batch, advantages_B: np.ndarray) -> Scores: ...


SCORERS: Registry[Scorer] = Registry("weight.scorer")


@SCORERS.register("advantage_magnitude")
class AdvantageMagnitude(Method):
    """|A| per response: over its tokens the mean, which is |A| itself, or the sum (A0) [CODE]."""

    grain: ClassVar[Grain] = "response"

    reduce: Literal["mean", "sum", "max"] = "mean"

    def __call__(self, batch: Batch, advantages_B: np.ndarray) -> np.ndarray:
        magnitude_B = np.abs(advantages_B)
        return magnitude_B * batch.lengths_B if self.reduce == "sum" else magnitude_B


@SCORERS.register("reward")
class RewardScore(Method):
    """The shaped reward of a response; `reward_difficulty` in DataFlex-RL (A0) [CODE]."""

    grain: ClassVar[Grain] = "response"

    def __call__(self, batch: Batch, advantages_B: np.ndarray) -> np.ndarray:
        return batch.rewards_B


@SCORERS.register("group_solve_rate")
class GroupSolveRate(Method):
    """q_g: share of the group's graded rows whose raw outcome is a success (A0, P9) [CODE].

    `above_half` is DataFlex-RL's: share of all its rows whose shaped reward is above .5.
    """

    grain: ClassVar[Grain] = "group"

    success: Literal["declared", "above_half"] = "declared"

    def __call__(self, batch: Batch, advantages_B: np.ndarray) -> np.ndarray:
        if self.success == "above_half":
            above_B = (batch.rewards_B > 0.5).astype(np.float64)
            shares = [above_B[batch.rows(number)].mean() for number in range(len(batch.groups))]
            return np.array(shares)[batch.group_of_rows()]
        rates = np.array([group.solve_rate() for group in batch.groups], dtype=np.float64)
        return rates[batch.group_of_rows()]


@SCORERS.register("token_prob")
class TokenProbability(Method):
    """pi of each sampled token under the distribution it was sampled from (A6) [CODE]."""

    grain: ClassVar[Grain] = "token"
    needs: ClassVar[frozenset[str]] = frozenset({"logprob"})

    def __call__(self, batch: Batch, advantages_B: np.ndarray) -> list[np.ndarray]:
        rows = end_to_end(batch.logprobs())
        tokens = rows.tokens
        np.exp(tokens, out=tokens)
        # Seldom so, and quicker to see than to do; a NaN hides what else is there.
        if not tokens.max(initial=0.0) <= 1.0:
            np.minimum(tokens, 1.0, out=tokens)
        return rows


@SCORERS.register("token_efficiency")
class TokenEfficiency(Method):
    """Reward per token, R / max(L, 1) (GFPO, arXiv:2508.09726) [TEXT].

    Negative rewards turn it round: the longest wrong answer scores highest (A4); shift them or
    score by brevity.
    """

    grain: ClassVar[Grain] = "response"

    def __call__(self, batch: Batch, advantages_B: np.ndarray) -> np.ndarray:
        return batch.rewards_B / np.maximum(batch.lengths_B, 1)


@SCORERS.register("brevity")
class Brevity(Method):
    """-L: the shorter, the better (GFPO's `short`, arXiv:2508.09726) [TEXT]."""

    grain: ClassVar[Grain] = "response"

    def __call__(self, batch: Batch, advantages_B: np.ndarray) -> np.ndarray:
        return -batch.lengths_B.astype(np.float64)


class _OfSignal(Method):
    """Base of scorers by what the engine measured of each token; `rollout.signals` must name it."""

    signal: Literal["entropy", "self_certainty"]

    @property
    def needs(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return frozenset({self.signal})


@SCORERS.register("token_signal")
class TokenSignal(_OfSignal):
    """The signal of each token [PROP]."""

    grain: ClassVar[Grain] = "token"

    def __call__(self, batch: Batch, advantages_B: np.ndarray) -> list[np.ndarray]:
        return batch.token_signal(self.signal)


@SCORERS.register("mean_signal")
class MeanSignal(_OfSignal):
    """The signal's mean over the tokens of a response [PROP]."""

    grain: ClassVar[Grain] = "response"

    def __call__(self, batch: Batch, advantages_B: np.ndarray) -> np.ndarray:
        sums = [np.add.reduce(values_T) for values_T in batch.token_signal(self.signal)]
        return np.array(sums) / np.maximum(batch.lengths_B, 1)
