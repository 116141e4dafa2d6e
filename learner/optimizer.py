"""AdamW's state as safetensors and back, by parameter name, to the bit."""

import safetensors.torch
import torch
from transformers import PreTrainedModel

from learner.settings import LearnerSettings


def make_optimizer(model: PreTrainedModel, settings: LearnerSettings) -> torch.optim.AdamW:
    """AdamW; weight decay on matrices only, not on norms and biases."""
    parameters = list(model.parameters())
    return torch.optim.AdamW(
        [
            {
                "params": [p for p in parameters if p.ndim >= 2],
                "weight_decay": settings.weight_decay,
            },
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=settings.learning_rate,
        betas=settings.betas,
        fused=True,
    )


class Snapshot:
    """The weights and the optimizer's state as they are now, to go back to within this process."""

    def __init__(self, model: PreTrainedModel, optimizer: torch.optim.AdamW) -> None:
        self._optimizer = optimizer
        self._weights = [(p, p.detach().clone()) for p in model.parameters()]
        self._state = {
            p: {what: value.clone() for what, value in entries.items()}
            for p, entries in optimizer.state.items()
        }

    def restore(self) -> None:
        with torch.no_grad():
            for parameter, value in self._weights:
                parameter.copy_(value)
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state)


def optimizer_bytes(model: PreTrainedModel, optimizer: torch.optim.AdamW) -> bytes:
    """Every tensor of the state, named `<what>/<parameter>`; empty before the first step."""
    tensors = {
        f"{what}/{name}": value.detach().to("cpu").contiguous()
        for name, parameter in model.named_parameters()
        for what, value in optimizer.state.get(parameter, {}).items()
    }
    return safetensors.torch.save(tensors)


def load_optimizer(model: PreTrainedModel, optimizer: torch.optim.AdamW, data: bytes) -> None:
    """Put `optimizer_bytes` back. ValueError when a name is not a parameter of the model."""
    parameters = dict(model.named_parameters())
    optimizer.state.clear()
    for key, value in safetensors.torch.load(data).items():
        what, _, name = key.partition("/")
        if name not in parameters:
            raise ValueError(f"optimizer: {name} is no parameter of the model")
        parameter = parameters[name]
        # The step counter lives with the parameter because the fused update reads it there.
        optimizer.state[parameter][what] = value.to(parameter.device)
