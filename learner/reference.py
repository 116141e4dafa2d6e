"""The frozen model of the KL term: of a folder, or the run's own version 0, which checkpoint 0 keeps."""

import copy
from pathlib import Path

from transformers import PreTrainedModel

from broker.errors import BadConfiguration
from learner.checkpoint import read
from learner.compute import plain_layers
from learner.model import head_weight, load_model, load_weights
from learner.objective import KlToReference
from learner.trainer import Trainer

FIRST = "step-00000000-*"


def pinned(kl: KlToReference | None, checkpoints: Path) -> list[str]:
    """Names of checkpoints that must outlive all others."""
    if kl is None or kl.path is not None:
        return []
    return sorted(path.name for path in checkpoints.glob(FIRST))[:1]


def make_reference(
    kl: KlToReference, trainer: Trainer, checkpoints: Path, *, step: int
) -> PreTrainedModel:
    """What the settings ask for. step: which the trainer's weights belong to.

    Raises BadConfiguration or BadCheckpoint.
    """
    if kl.path is not None:
        found = load_model(kl.path, device=str(trainer.model.device), seed=0)
        if not any(kl.path.glob("*.safetensors")):
            raise BadConfiguration(f"learner.kl.path {kl.path}: holds no weights (*.safetensors)")
        if head_weight(found).shape[0] != trainer.vocabulary:
            raise BadConfiguration(
                f"learner.kl.path {kl.path}: {head_weight(found).shape[0]} token ids; "
                f"the model has {trainer.vocabulary}"
            )
    else:
        found = copy.deepcopy(trainer.model)
        plain_layers(found)
        if step > 0:
            names = pinned(kl, checkpoints)
            path = checkpoints / (names[0] if names else FIRST)
            load_weights(found, read(path).model)
    return found.requires_grad_(False)
