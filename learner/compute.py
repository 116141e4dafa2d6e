"""How the layers are computed: recomputed in backward instead of kept, compiled, or plainly."""

from functools import partial

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from learner.settings import LearnerSettings


def prepare_layers(model: PreTrainedModel, settings: LearnerSettings) -> None:
    """Put the settings in force, in place. Hooks on the layers stay outside of both."""
    for layer in getattr(model.base_model, "layers", ()):
        if settings.compile:
            # Every micro-batch has another number of tokens: one compilation must do for all.
            layer.forward = torch.compile(layer.forward, dynamic=True)
        if settings.activation_checkpointing:
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def plain_layers(model: PreTrainedModel) -> None:
    """Undo `prepare_layers`, for a copy: a compiled function would go on using the original's weights."""
    for layer in getattr(model.base_model, "layers", ()):
        layer.__dict__.pop("forward", None)
