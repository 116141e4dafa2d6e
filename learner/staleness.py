"""How old a group is, in words, and how much of a step must be fresh (C11) [SEED]. Pure.

Staleness is the version a step starts from minus the oldest version among a group's tokens. verl's
async span counts one more: its span of 1 is a staleness of 0.
"""

from collections.abc import Sequence
from typing import Literal

Word = Literal["fresh", "acceptable", "stale"]

NOT_FRESH = "not_fresh"
"""Reason of a group that was young enough, but too many were as old."""


def word(staleness: int, max_staleness: int) -> Word:
    """fresh: 0, to be used; acceptable: up to the bound, to be mixed with fresh ones; stale: to be dropped.

    ValueError below 0: such a group was made by a version that the trainer does not have yet.
    """
    if staleness < 0:
        raise ValueError(f"staleness {staleness}: expected 0 or more")
    if staleness == 0:
        return "fresh"
    return "acceptable" if staleness <= max_staleness else "stale"


def excess(bundles: Sequence[tuple[int, int]], min_fresh_share: float) -> set[int]:
    """Which bundles must go, so that at least this share of the groups left is fresh.

    bundles: (groups, staleness of the oldest) each. The oldest go first, later ones before earlier
    ones; of a step without any fresh group nothing is left.
    """
    total = sum(groups for groups, _ in bundles)
    fresh = sum(groups for groups, age in bundles if age == 0)
    gone: set[int] = set()
    by_age = sorted(range(len(bundles)), key=lambda at: (bundles[at][1], at), reverse=True)
    for at in by_age:
        groups, age = bundles[at]
        # The slack makes the share compare as counts do.
        if age == 0 or fresh >= min_fresh_share * total - 1e-9:
            break
        gone.add(at)
        total -= groups
    return gone
