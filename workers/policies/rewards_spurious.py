"""Spurious rewards (C7, arXiv:2506.10947): they replace the verdict, to tell learning from artefact."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from pydantic import Field

from workers.policies.group import SLACK, Group
from workers.policies.registry import Method
from workers.policies.rewards import REWARDS


def most_common(classes: Sequence[int]) -> int | None:
    """The most frequent answer class, the first seen among equals; None without an answer."""
    found = Counter(c for c in classes if c >= 0).most_common(1)
    return found[0][0] if found else None


def _on_usable(group: Group, rewards_G: np.ndarray) -> np.ndarray:
    return np.where(group.usable_G, rewards_G, np.nan)


@REWARDS.register("random")
class Random(Method):
    """1 with probability gamma, from a hash of seed, sample, visit and row: equal on every replay [CODE]."""

    gamma: float = Field(default=0.5, ge=0, le=1)
    seed: int = 0

    def __call__(self, group: Group, rewards_G: np.ndarray) -> np.ndarray:
        draws = [
            hashlib.sha256(
                f"{self.seed}:{group.sample_key}:{group.visit}:{group.attempt}:{i}".encode()
            )
            for i in group.indices
        ]
        unit_G = np.array([int.from_bytes(d.digest()[:8], "big") / 2**64 for d in draws])
        return _on_usable(group, (unit_G < self.gamma).astype(np.float64))


@REWARDS.register("incorrect")
class Incorrect(Method):
    """1 iff the answer equals a chosen wrong one: the group's most frequent wrong answer [PROP]."""

    needs: ClassVar[frozenset[str]] = frozenset({"answer"})

    def __call__(self, group: Group, rewards_G: np.ndarray) -> np.ndarray:
        wrong_G = ~(group.outcomes_G >= group.success - SLACK)
        label = most_common([int(c) for c, w in zip(group.classes_G, wrong_G, strict=True) if w])
        hit_G = np.zeros(group.size) if label is None else group.classes_G == label
        return _on_usable(group, np.asarray(hit_G, dtype=np.float64))


@REWARDS.register("inverted")
class Inverted(Method):
    """1 - r; not the same as `incorrect` [PROP]."""

    def __call__(self, group: Group, rewards_G: np.ndarray) -> np.ndarray:
        return 1.0 - rewards_G


@REWARDS.register("format")
class Format(Method):
    """1 iff an answer could be extracted at all [CODE]."""

    needs: ClassVar[frozenset[str]] = frozenset({"answer"})

    def __call__(self, group: Group, rewards_G: np.ndarray) -> np.ndarray:
        return _on_usable(group, (group.classes_G >= 0).astype(np.float64))


@REWARDS.register("majority")
class Majority(Method):
    """1 iff the answer is the group's most frequent one [CODE]."""

    needs: ClassVar[frozenset[str]] = frozenset({"answer"})

    def __call__(self, group: Group, rewards_G: np.ndarray) -> np.ndarray:
        label = most_common([int(c) for c in group.classes_G])
        hit_G = np.zeros(group.size) if label is None else group.classes_G == label
        return _on_usable(group, np.asarray(hit_G, dtype=np.float64))


@REWARDS.register("constant")
class Constant(Method):
    """Always the same: advantages are exactly 0, and with no KL and no weight decay nothing moves [CODE]."""

    value: float = 1.0

    def __call__(self, group: Group, rewards_G: np.ndarray) -> np.ndarray:
        return _on_usable(group, np.full(group.size, self.value))
