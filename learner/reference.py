"""The frozen model of the KL term: of a folder, or the run's own version 0, which checkpoint 0 keeps."""

import copy
from pathlib import Path

import torch
from transformers import AutoConfig, PreTrainedModel

from broker.errors import BadConfiguration
from learner.checkpoint import read
from learner.compute import plain_layers
from learner.model import load_model, load_weights
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


def refuse_unusable_folder(path: Path, vocabulary: int) -> None:
    """BadConfiguration unless it holds the weights of a model with as many token ids; loads none."""
    if not any(path.glob("*.safetensors")):
        raise BadConfiguration(f"learner.kl.path {path}: holds no weights (*.safetensors)")
    found = vocabulary_of(path, "learner.kl.path")
    if found != vocabulary:
        raise BadConfiguration(
            f"learner.kl.path {path}: {found} token ids; the model has {vocabulary}"
        )


def vocabulary_of(folder: Path, key: str) -> int:
    """How many token ids a folder's model knows. key: of the configuration, for BadConfiguration."""
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True).vocab_size
    except (OSError, ValueError) as error:
        raise BadConfiguration(
            f"{key} {folder}: expected a Hugging Face causal LM folder: {error}"
        ) from error


def make_reference(kl: KlToReference, trainer: Trainer, first: bytes | None) -> PreTrainedModel:
    """What the settings ask for, torch's generator left as it is. Raises BadConfiguration.

    first: of `first_weights`; None: the trainer's weights are version 0.
    """
    if kl.path is not None:
        refuse_unusable_folder(kl.path, trainer.vocabulary)
        with torch.random.fork_rng(devices=[]):
            found = load_model(kl.path, device=str(trainer.model.device), seed=0)
    else:
        found = copy.deepcopy(trainer.model)
        plain_layers(found)
        if first is not None:
            load_weights(found, first)
    return found.requires_grad_(False)
