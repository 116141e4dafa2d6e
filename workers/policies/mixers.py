"""Mixture stage: which share of the coming draws each domain gets.

Proportions are finite, not negative and sum to 1, whatever the history holds.
Shape legend: D domains, in the order of the configuration.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np

from broker.errors import BadConfiguration
from broker.messages import Json
from workers.policies.registry import Method, Registry


@dataclass(frozen=True, eq=False)
class History:
    """What a mixer may look at: one value per domain and window, oldest first."""

    domains: tuple[str, ...]
    prior_D: np.ndarray
    """The configured shares."""
    current_D: np.ndarray
    """The shares in force."""
    update_no: int
    """Of the update to decide; equals the window's number."""
    rewards: tuple[tuple[float, ...], ...]
    """Mean raw outcome over the rows verified for a window, filtered groups included."""
    magnitudes: tuple[tuple[float, ...], ...]
    """Mean |advantage| over the same rows; those of a filtered group count 0."""
    rows_D: np.ndarray
    """Answers verified so far, (D,) int64."""
    graded: tuple[tuple[int, ...], ...] = ()
    """Graded answers per window."""
    solved: tuple[tuple[int, ...], ...] = ()
    """Of them solved, on the raw outcome."""
    recent: tuple[tuple[float, ...], ...] = ()
    """Scores of the newest answers, one each: as many as the mixer's `window`."""
    memory: Json = field(default_factory=dict[str, object])
    """The mixer's own, from update to update; JSON values."""


class Mixer(Protocol):
    window: int
    """Windows of history it looks at."""

    def __call__(self, history: History) -> np.ndarray:
        """Target shares, (D,)."""
        ...


MIXERS: Registry[Mixer] = Registry("mixer")


def proportions(shares_D: np.ndarray, what: str) -> np.ndarray:
    """Normalised to sum 1. BadConfiguration when that is impossible."""
    shares_D = np.asarray(shares_D, dtype=np.float64)
    total = shares_D.sum()
    if not np.isfinite(total) or total <= 0 or (shares_D < 0).any():
        raise BadConfiguration(
            f"{what} {shares_D.tolist()}: expected finite shares, none negative, with a positive sum"
        )
    return shares_D / total


def apportion(shares_D: np.ndarray, total: int) -> np.ndarray:
    """Whole numbers summing to `total`, as near to the shares as can be: largest remainder.

    shares_D: (D,), summing to 1. Ties go to the earlier domain.
    """
    exact_D = shares_D * total
    counts_D = np.floor(exact_D + 1e-9).astype(np.int64)
    # Rounded, so that remainders that differ only by float error count as ties.
    order = np.argsort(-np.round(exact_D - counts_D, 9), kind="stable")
    counts_D[order[: total - int(counts_D.sum())]] += 1
    return counts_D


def stated(shares: dict[str, float] | None, history: History) -> np.ndarray:
    """Shares named by domain, (D,); the sources' where none are named."""
    if shares is None:
        return history.prior_D
    if set(shares) != set(history.domains):
        raise BadConfiguration(
            f"policy.mixer shares name {sorted(shares)}; "
            f"the sources' domains are {sorted(history.domains)}"
        )
    values_D = np.array([shares[domain] for domain in history.domains])
    return proportions(values_D, "policy.mixer shares")


@MIXERS.register("static")
class Static(Method):
    """The configured shares, for good (A10)."""

    window: ClassVar[int] = 50

    shares: dict[str, float] | None = None
    """Per domain; None: the sources' shares."""

    def __call__(self, history: History) -> np.ndarray:
        return stated(self.shares, history)
