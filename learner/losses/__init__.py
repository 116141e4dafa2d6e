"""One loss a file; a loss maps the tokens of a micro-batch to one loss per token."""

from collections.abc import Callable
from functools import partial

from learner.losses.base import Loss, TokenLosses
from learner.losses.cispo import cispo
from learner.losses.decoupled import decoupled
from learner.losses.dppo_tv import dppo_tv
from learner.losses.dr_grpo import dr_grpo
from learner.losses.gspo import gspo
from learner.losses.ppo_clip import ppo_clip
from learner.losses.reinforce import reinforce
from learner.losses.sapo import sapo
from learner.objective import AnyLoss

LOSSES: dict[str, Callable[..., TokenLosses]] = {
    "ppo_clip": ppo_clip,
    "dr_grpo": dr_grpo,
    "gspo": gspo,
    "cispo": cispo,
    "sapo": sapo,
    "dppo_tv": dppo_tv,
    "decoupled": decoupled,
    "reinforce": reinforce,
}
"""Name in the configuration to loss; its options are keywords."""


def make_loss(settings: AnyLoss) -> Loss:
    """The loss with its options bound."""
    return partial(LOSSES[settings.name], **settings.model_dump(exclude={"name"}))
