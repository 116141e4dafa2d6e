"""The frozen model of the KL term: of a folder, or the run's own version 0, which checkpoint 0 keeps."""

import copy
from pathlib import Path

import torch
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


def first_weights(kl: KlToReference | None, checkpoints: Path, *, step: int) -> bytes | None:
    """Of version 0, where a trainer put at `step` needs them beside its own. Raises BadCheckpoint."""
    if kl is None or kl.path is not None or step == 0:
        return None
    names = pinned(kl, checkpoints)
    return read(checkpoints / (names[0] if names else FIRST)).model


def make_reference(kl: KlToReference, trainer: Trainer, first: bytes | None) -> PreTrainedModel:
    """What the settings ask for, torch's generator left as it is. Raises BadConfiguration.

    first: of `first_weights`; None: the trainer's weights are version 0.
    """
    if kl.path is not None:
        if not any(kl.path.glob("*.safetensors")):
            raise BadConfiguration(f"learner.kl.path {kl.path}: holds no weights (*.safetensors)")
        with torch.random.fork_rng(devices=[]):
            found = load_model(kl.path, device=str(trainer.model.device), seed=0)
        if head_weight(found).shape[0] != trainer.vocabulary:
            raise BadConfiguration(
                f"learner.kl.path {kl.path}: {head_weight(found).shape[0]} token ids; "
                f"the model has {trainer.vocabulary}"
            )
    else:
        found = copy.deepcopy(trainer.model)
        plain_layers(found)
        if first is not None:
            load_weights(found, first)
    return found.requires_grad_(False)
