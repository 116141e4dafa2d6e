"""One loss a file; a loss maps the tokens of a micro-batch to one loss per token."""

from collections.abc import Callable
from functools import partial

from learner.losses.base import Loss
from learner.losses.ppo_clip import ppo_clip
from learner.settings import LearnerSettings

LOSSES: dict[str, Callable[[LearnerSettings], Loss]] = {
    "ppo_clip": lambda s: partial(ppo_clip, clip_low=s.clip_low, clip_high=s.clip_high),
}
"""Name in the configuration to loss with its options bound."""
