"""Every file with methods: importing this one registers them all. A new file is added here."""

from workers.policies import (
    admission,
    advantages,
    advantages_more,
    dbb,
    mixers,
    mixers_adaptive,
    noise,
    rewards,
    rewards_shaping,
    rewards_spurious,
    reweighters,
    scorers,
    selectors,
    targets,
    weights,
)

__all__ = [
    "admission",
    "advantages",
    "advantages_more",
    "dbb",
    "mixers",
    "mixers_adaptive",
    "noise",
    "rewards",
    "rewards_shaping",
    "rewards_spurious",
    "reweighters",
    "scorers",
    "selectors",
    "targets",
    "weights",
]
