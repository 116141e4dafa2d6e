"""How the layers are computed: recomputed in backward instead of kept, compiled, or plainly."""

from functools import partial

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from broker.errors import BadConfiguration
from learner.settings import LearnerSettings

BATCH_DEPENDENT_ROPE = ("dynamic", "longrope")
"""Rotary embeddings that keep the longest row of a batch in the model, where two passes would share it."""


def may_stream(model: PreTrainedModel, settings: LearnerSettings) -> bool:
    """Whether passes may be under way at once. A GPU has one queue of work, a compiler one program."""
    rope = getattr(model.config, "rope_parameters", None) or {}
    by_batch = rope.get("rope_type") in BATCH_DEPENDENT_ROPE
    return model.device.type == "cpu" and not settings.compile and not by_batch


def prepare_layers(model: PreTrainedModel, settings: LearnerSettings) -> None:
    """Put the settings in force, in place. Hooks on the layers stay outside of both.

    Raises BadConfiguration for a model whose layers are not where Llama's are.
    """
    layers = getattr(model.base_model, "layers", ())
    if (settings.compile or settings.activation_checkpointing) and not layers:
        raise BadConfiguration(
            f"learner.compile, learner.activation_checkpointing: {type(model).__name__} has no `layers`; "
            "expected neither, or an architecture such as Llama or Qwen"
        )
    for layer in layers:
        if settings.compile:
            # Every micro-batch has another number of tokens: one compilation must do for all.
            layer.forward = torch.compile(layer.forward, dynamic=True)
        if settings.activation_checkpointing:
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def plain_layers(model: PreTrainedModel) -> None:
    """Undo `prepare_layers`, for a copy: a compiled function would go on using the original's weights."""
    for layer in getattr(model.base_model, "layers", ()):
        layer.__dict__.pop("forward", None)
