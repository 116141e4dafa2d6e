"""A group after target, admission and reward: what the later stages and the record are made from."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from workers.policies.group import Group


@dataclass(frozen=True, eq=False)
class Judged:
    group: Group
    rewards_G: np.ndarray
    """(G,) float64; NaN in excluded rows."""
    reason: str
    """Why it is dropped; empty when admitted."""
    signals: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    """What the reward methods read, (G,) each; goes into the record."""

    def dropped(self, reason: str) -> "Judged":
        return replace(self, reason=reason)
