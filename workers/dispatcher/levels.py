"""A static mix of levels within a source: of every 100 draws so many of each, shuffled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor

from broker.errors import BadConfiguration
from workers.dispatcher.items import Item
from workers.dispatcher.permutation import permute

BLOCK = 100


def level_of(item: Item) -> str:
    """Stated, or its difficulty as it would be written."""
    if item.level is not None:
        return item.level
    return "none" if item.difficulty is None else f"{item.difficulty:g}"


def quotas(shares: Mapping[str, float]) -> dict[str, int]:
    """Draws of each level in a block, by largest remainder; they sum to BLOCK."""
    total = sum(shares.values())
    exact = {level: BLOCK * share / total for level, share in shares.items()}
    counts = {level: floor(value) for level, value in exact.items()}
    by_remainder = sorted(exact, key=lambda level: (counts[level] - exact[level], level))
    for level in by_remainder[: BLOCK - sum(counts.values())]:
        counts[level] += 1
    return counts


@dataclass(frozen=True)
class LevelMix:
    """Which item a draw takes. A pure function of the draw's number, as without levels."""

    places: Mapping[str, Sequence[int]]
    """Of each level's items."""
    quota: Mapping[str, int]

    @classmethod
    def of(cls, items: Sequence[Item], shares: Mapping[str, float], name: str) -> "LevelMix":
        """Raises BadConfiguration for a level that no item has, or that no draw would take."""
        places: dict[str, list[int]] = {level: [] for level in shares}
        for place, item in enumerate(items):
            places.get(level_of(item), []).append(place)
        empty = [level for level, of in places.items() if not of]
        if empty:
            there = ", ".join(sorted({level_of(item) for item in items}))
            raise BadConfiguration(
                f"source.{name}.levels.{empty[0]}: no item has that level; there are: {there}"
            )
        quota = quotas(shares)
        never = next((level for level, draws in quota.items() if not draws), None)
        if never is not None:
            raise BadConfiguration(
                f"source.{name}.levels.{never} = {shares[never]:g}: expected a share of which one in "
                f"{BLOCK} draws is left; all sum to {sum(shares.values()):g}"
            )
        return cls(places, quota)

    def place(self, position: int, key: str) -> tuple[int, int]:
        """(place among the items, pass through its level) of the draw with that number, from 0."""
        block, slot = divmod(position, BLOCK)
        rank = permute(slot, size=BLOCK, key=f"{key}:block:{block}")
        for level, quota in self.quota.items():
            if rank < quota:
                return self._of_level(level, block * quota + rank, key)
            rank -= quota
        raise IndexError(f"slot {slot}: quotas sum to {sum(self.quota.values())}, not {BLOCK}")

    def _of_level(self, level: str, number: int, key: str) -> tuple[int, int]:
        places = self.places[level]
        pass_no, at = divmod(number, len(places))
        return places[permute(at, size=len(places), key=f"{key}:{level}:{pass_no}")], pass_no
