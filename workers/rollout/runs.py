"""Rows of the cache that attention reads together: each as far as the longest of them reaches."""

from typing import NamedTuple

import numpy as np

WORTH_A_RUN = 0.875
"""A second run is made where this share of the slots, or less, is left to read."""


class Run(NamedTuple):
    """Rows `first` to `end`, none longer than `length` slots."""

    first: int
    end: int
    length: int


def runs_of(lengths_B: np.ndarray) -> list[Run]:
    """One or two runs of all rows, at least one.

    Groups that began together lie together, so two do for most: those that began first, and the others.
    """
    rows, longest = len(lengths_B), int(lengths_B.max())
    ends = np.arange(1, rows)  # of the first run
    before = np.maximum.accumulate(lengths_B)[:-1]
    behind = np.maximum.accumulate(lengths_B[::-1])[::-1][1:]
    slots = ends * before + (rows - ends) * behind
    if rows == 1 or slots.min() > WORTH_A_RUN * rows * longest:
        return [Run(0, rows, longest)]
    at = int(slots.argmin())
    return [Run(0, at + 1, int(before[at])), Run(at + 1, rows, int(behind[at]))]
