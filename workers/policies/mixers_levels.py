"""Difficulty control: the domains are levels, easiest first, and their shares follow what is solved (C6).

A level is a source with a domain of its own. Solve rates are of raw outcomes, filtered groups included.
Shape legend: D domains.
"""

from collections.abc import Sequence

import numpy as np
from pydantic import Field, model_validator

from workers.policies.mixers import MIXERS, History, stated
from workers.policies.mixers_adaptive import refuse_floor, with_floor
from workers.policies.registry import Method


def controlled(
    shares_D: np.ndarray,
    rates_D: np.ndarray,
    static_D: np.ndarray,
    *,
    low: float = 0.1,
    high: float = 0.9,
    best: tuple[float, float] = (0.2, 0.5),
    floor: float = 0.02,
) -> np.ndarray:
    """Shares after one look at the solve rates, (D,) summing to 1 [PROP].

    rates_D: NaN where too little is known. Too easy or too hard a level is halved, one in the best
    band grows by a quarter up to its static share; then all are normalised, and lifted to the floor
    where one is below it. When every level is halved nothing changes.
    """
    extreme_D = (rates_D > high) | (rates_D < low)
    good_D = (rates_D >= best[0]) & (rates_D <= best[1])
    grown_D = np.maximum(shares_D, np.minimum(1.25 * shares_D, static_D))
    raw_D = np.where(extreme_D, shares_D / 2, np.where(good_D, grown_D, shares_D))
    if extreme_D.all() or np.array_equal(raw_D, shares_D):
        return shares_D
    raw_D = raw_D / raw_D.sum()
    return with_floor(raw_D, floor) if raw_D.min() < floor else raw_D


def newest(values: Sequence[int], weights: Sequence[int], least: int) -> tuple[int, int]:
    """(sum of values, sum of weights) over the newest windows that together have `least`, or over all."""
    total = counted = 0
    for value, weight in zip(reversed(values), reversed(weights), strict=True):
        if counted >= least:
            break
        total, counted = total + value, counted + weight
    return total, counted


@MIXERS.register("difficulty")
class Difficulty(Method):
    """Halves levels that are too easy or too hard, and gives back to those worth learning (C6) [PROP].

    The chapter's static mix of four levels is 20, 45, 30 and 5 %: `mixer = {name = "static", shares =
    {...}}`. Its prose calls below 5 % too hard, its loop acts below 10 %: 10 % is what counts here [SEED].
    """

    shares: dict[str, float] | None = None
    """The static mix; None: the sources' shares."""
    every: int = Field(default=10, ge=1)
    """Windows between looks."""
    least: int = Field(default=16, ge=1)
    """Graded answers without which a level's rate is unknown."""
    low: float = Field(default=0.1, ge=0, le=1)
    high: float = Field(default=0.9, ge=0, le=1)
    best: tuple[float, float] = (0.2, 0.5)
    floor: float = Field(default=0.02, ge=0, lt=1)

    @model_validator(mode="after")
    def _ordered(self) -> "Difficulty":
        if not self.low <= self.best[0] <= self.best[1] <= self.high:
            raise ValueError(
                f"low {self.low}, best {self.best}, high {self.high}: expected in ascending order"
            )
        return self

    @property
    def window(self) -> int:
        return self.every

    def __call__(self, history: History) -> np.ndarray:
        refuse_floor(self.floor, len(history.domains))
        static_D = stated(self.shares, history)
        if history.update_no == 0:
            return static_D
        if history.update_no % self.every:
            return history.current_D
        return controlled(
            history.current_D, self._rates(history), static_D,
            low=self.low, high=self.high, best=self.best, floor=self.floor,
        )  # fmt: skip

    def _rates(self, history: History) -> np.ndarray:
        found = [
            (sum(solved), sum(graded))
            for solved, graded in zip(history.solved, history.graded, strict=True)
        ]
        return np.array([s / g if g >= self.least else np.nan for s, g in found])


def stepped(level: int, rate: float, levels: int, *, up: float = 0.7, down: float = 0.3) -> int:
    """The level after one look at the newest one's solve rate; never below 0 or above the last [CODE]."""
    if rate > up:
        return min(level + 1, levels - 1)
    return max(level - 1, 0) if rate < down else level


@MIXERS.register("curriculum")
class Curriculum(Method):
    """Levels are opened one by one as the newest is solved, as Reasoning Gym does (C6) [CODE].

    Equal shares over the open levels. Once `last_k` answers of the newest were graded since it became
    the newest, every update looks at its last windows, as many as hold `last_k`: more than `up` solved
    opens the next level, less than `down` closes this one. Reasoning Gym takes last_k 2560 for Knights
    & Knaves and 20 elsewhere, down .3 and in others .2 or .1; the mean here is over all answers of the
    level, not of one group.
    """

    window: int = Field(default=50, ge=1)
    last_k: int = Field(default=20, ge=1)
    up: float = Field(default=0.7, ge=0, le=1)
    down: float = Field(default=0.3, ge=0, le=1)

    @model_validator(mode="after")
    def _ordered(self) -> "Curriculum":
        if self.down >= self.up:
            raise ValueError(f"down {self.down} and up {self.up}: expected down < up")
        return self

    def __call__(self, history: History) -> np.ndarray:
        levels = len(history.domains)
        level, cleared = _read(history.memory)
        graded = int(history.rows_D[level]) - cleared
        if history.update_no and graded >= self.last_k:
            solved, counted = newest(history.solved[level], history.graded[level], self.last_k)
            changed = stepped(level, solved / counted, levels, up=self.up, down=self.down)
            if changed != level:
                level, cleared = changed, int(history.rows_D[changed])
        history.memory.update(level=level, cleared=cleared)
        return (np.arange(levels) <= level) / (level + 1)


def _read(memory: dict[str, object]) -> tuple[int, int]:
    """(newest open level, its graded answers when it was opened)."""
    level, cleared = memory.get("level", 0), memory.get("cleared", 0)
    assert isinstance(level, int) and isinstance(cleared, int)  # noqa: PT018 - only written above
    return level, cleared
