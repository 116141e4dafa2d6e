"""Mixers that follow the domains' rewards and advantages.

Domains without any graded answer keep the share they had: unknown is not 0 [PROP]. Shares never
fall below the floor: p = f + (1 - D f) softmax, unlike the published max(p, f) renormalised, which
leaves entries below it (A11); `floor_as = "published"` has that for comparison.
Shape legend: D domains.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, TypeVar

import numpy as np
from pydantic import Field, model_validator

from broker.errors import BadConfiguration
from workers.policies.mixers import MIXERS, History
from workers.policies.registry import Method
from workers.policies.statistics import slope


def softmax(values_D: np.ndarray, temperature: float) -> np.ndarray:
    raw_D = np.exp((values_D - values_D.max()) / temperature)
    return raw_D / raw_D.sum()


def with_floor(shares_D: np.ndarray, floor: float) -> np.ndarray:
    """(D,) summing to 1, none below `floor`: f + (1 - D f) p."""
    return floor + (1 - len(shares_D) * floor) * shares_D


def refuse_floor(floor: float, count: int) -> None:
    """BadConfiguration where that many domains cannot all have the floor and one of them more."""
    if count * floor >= 1:
        raise BadConfiguration(
            f"policy.mixer floor {floor}: expected below 1/{count} for {count} domains"
        )


def with_published_floor(shares_D: np.ndarray, floor: float) -> np.ndarray:
    """max(p, f) renormalised, as DataFlex-RL has it: entries can end up below f (A11) [CODE]."""
    raised_D = np.maximum(shares_D, floor)
    return raised_D / raised_D.sum()


def ucb_values(values_D: np.ndarray, counts_D: np.ndarray, c: float) -> np.ndarray:
    """v + c sqrt(2 ln(N + 1) / (n + 1)) (DUMP, arXiv:2504.09710) [CODE]."""
    return values_D + c * np.sqrt(2 * np.log(counts_D.sum() + 1) / (counts_D + 1))


class Adaptive(Method, ABC):
    """What the adaptive mixers share: when they move, and by how little they may draw a domain."""

    temperature: float = Field(default=1.0, gt=0)
    floor: float = Field(default=0.05, ge=0, lt=1)
    floor_as: Literal["corrected", "published"] = "corrected"
    window: int = Field(default=50, ge=1)
    """Windows of history; answers when counted by row."""
    by: Literal["window", "row"] = "window"
    """One value per window, or per answer, as DataFlex-RL has it: 50 are about half a step (DF-6)."""
    unseen: Literal["keep", "zero"] = "keep"
    """A domain without answers keeps its share, or counts as reward 0, as in DataFlex-RL."""
    warmup: int = Field(default=1, ge=0)
    """Shares stay as configured before this update."""
    every: int = Field(default=1, ge=1)
    """Updates between changes."""

    @abstractmethod
    def values(self, history: History, seen: np.ndarray) -> np.ndarray:
        """Score of each seen domain, (number seen,)."""

    def __call__(self, history: History) -> np.ndarray:
        count = len(history.domains)
        refuse_floor(self.floor, count)
        seen = np.arange(count)
        if self.unseen == "keep":
            seen = np.flatnonzero([len(rewards) > 0 for rewards in history.rewards])
        due = history.update_no >= self.warmup and history.update_no % self.every == 0
        if history.update_no == 0 or not due or not len(seen):
            return history.current_D
        shares_D = history.current_D.copy()
        # The seen domains divide among themselves what the unseen ones leave.
        free = 1.0 - (shares_D.sum() - shares_D[seen].sum())
        shares_D[seen] = free * softmax(self.values(history, seen), self.temperature)
        floored = with_floor if self.floor_as == "corrected" else with_published_floor
        return floored(shares_D, self.floor)

    def rewards(self, history: History, seen: np.ndarray) -> np.ndarray:
        """Mean reward of each seen domain."""
        return _means(history.recent if self.by == "row" else history.rewards, seen)


M = TypeVar("M", bound=Adaptive)


def refuse_by_row(mixer: M, *, reads: str) -> M:
    """ValueError: of single answers the scores are known and nothing else."""
    if mixer.by == "row" and reads != "reward":
        raise ValueError(f"by 'row' with reads {reads!r}: expected reads = 'reward'")
    return mixer


def _means(values: Sequence[Sequence[float]], seen: np.ndarray) -> np.ndarray:
    """0 for a domain without a value."""
    return np.array([np.mean(values[d]) if len(values[d]) else 0.0 for d in seen])


@MIXERS.register("reward_gap")
class RewardGap(Adaptive):
    """More of what is solved less: softmax((max r - r) / T) (A11) [CODE].

    With T = 1 and rewards in [0, 1] three domains stay between .155 and .576.
    """

    def values(self, history: History, seen: np.ndarray) -> np.ndarray:
        means = self.rewards(history, seen)
        return means.max() - means


@MIXERS.register("dump_ucb")
class DumpUcb(Adaptive):
    """More of what moves the policy: mean |advantage| plus an exploration bonus (DUMP, A12).

    `reads = "reward"` with c = 0 is what DataFlex-RL's snapshot does: it favours the easiest [CODE].
    DUMP itself has T = .1 and 300 observations.
    """

    c: float = Field(default=1.0, ge=0)
    reads: Literal["advantage", "reward"] = "advantage"

    @model_validator(mode="after")
    def _by_what_is_kept(self) -> "DumpUcb":
        return refuse_by_row(self, reads=self.reads)

    def values(self, history: History, seen: np.ndarray) -> np.ndarray:
        advantage = self.reads == "advantage"
        read = _means(history.magnitudes, seen) if advantage else self.rewards(history, seen)
        return ucb_values(read, history.rows_D[seen].astype(np.float64), self.c)


@MIXERS.register("tscl")
class Tscl(Adaptive):
    """More of what changes: |slope| of the reward over windows (TSCL, arXiv:1707.00183; A13).

    One value per domain and window and T = .01, since slopes are far below 1 [PROP]; `signed`
    counts rising domains only; `reads = "reward"` with T = 1 is DataFlex-RL's snapshot [CODE].
    """

    temperature: float = Field(default=0.01, gt=0)
    signed: bool = False
    reads: Literal["slope", "reward"] = "slope"

    @model_validator(mode="after")
    def _by_what_is_kept(self) -> "Tscl":
        return refuse_by_row(self, reads=self.reads)

    def values(self, history: History, seen: np.ndarray) -> np.ndarray:
        if self.reads == "reward":
            return self.rewards(history, seen)
        slopes = np.array([slope(history.rewards[d]) for d in seen])
        return np.maximum(slopes, 0.0) if self.signed else np.abs(slopes)
