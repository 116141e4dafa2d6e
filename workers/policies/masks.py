"""Masks: rows of an admitted group that stay in its statistics but out of the loss."""

from typing import Protocol

import numpy as np

from workers.policies.batch import Batch
from workers.policies.registry import Method, Registry


class Mask(Protocol):
    def __call__(self, batch: Batch) -> np.ndarray:
        """(B,) bool; False leaves the row out as `masked:NAME`."""
        ...


MASKS: Registry[Mask] = Registry("mask")


@MASKS.register("overlong_filter")
class OverlongFilter(Method):
    """Leaves out answers cut off at the token limit (DAPO, arXiv:2503.14476, C2) [TEXT].

    Whether such an answer was going to be right is unknown; told by the finish reason.
    """

    def __call__(self, batch: Batch) -> np.ndarray:
        return ~np.concatenate([*(g.truncated_G for g in batch.groups), np.zeros(0, bool)])
