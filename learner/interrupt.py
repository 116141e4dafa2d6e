"""Lets a computation be given up between two layers, forward or backward: a process must leave in seconds."""

import threading

import torch
from transformers import PreTrainedModel


class Interrupted(Exception):
    """Asked to stop in the middle of a step; the model and the optimizer are as before it."""


def make_interruptible(model: PreTrainedModel, interrupted: threading.Event) -> None:
    """From now on a pass through `model` raises Interrupted soon after the event is set."""

    def check(_: object = None) -> None:
        if interrupted.is_set():
            raise Interrupted

    def passed(module: torch.nn.Module, args: object, output: object) -> None:
        check()
        hidden = output[0] if isinstance(output, tuple) else output
        if isinstance(hidden, torch.Tensor) and hidden.requires_grad:
            hidden.register_hook(check)

    for layer in getattr(model.base_model, "layers", ()):
        layer.register_forward_hook(passed)
