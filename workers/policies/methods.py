"""Every file with methods: importing this one registers them all. A new file is added here."""

from workers.policies import (
    admission,
    advantages,
    mixers,
    mixers_adaptive,
    rewards,
    reweighters,
    scorers,
    selectors,
    targets,
    weights,
)

__all__ = [
    "admission",
    "advantages",
    "mixers",
    "mixers_adaptive",
    "rewards",
    "reweighters",
    "scorers",
    "selectors",
    "targets",
    "weights",
]
