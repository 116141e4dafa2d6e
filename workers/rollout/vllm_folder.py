"""A published file of weights as the model folder that vLLM reads, checked before vLLM sees it.

vLLM only warns of tensors that are missing and stops half-way at wrong shapes; here a file that does not fit
is refused as a whole.
"""

import errno
import itertools
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from broker.exclusive import MODEL_LOADING
from workers.rollout.engine import BadWeights
from workers.rollout.model import check_names, check_tensor

WEIGHTS = "model.safetensors"
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".index.json")
_HEADER_ALIGNMENT = 8


class Folders:
    """Makes the folders of one model's versions under `home`."""

    def __init__(self, model_dir: Path, home: Path) -> None:
        """Reads the model's configuration, not its weights."""
        config = AutoConfig.from_pretrained(model_dir, local_files_only=True)
        with MODEL_LOADING, torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        self._model_dir = model_dir.resolve()
        self._home = home
        self._numbers = itertools.count()
        self._expected: dict[str, Tensor] = model.state_dict(keep_vars=True)
        self._input: Tensor = model.get_input_embeddings().weight
        modules = {id(module): name for name, module in model.named_modules()}
        self._input_name = f"{modules[id(model.get_input_embeddings())]}.weight"

    def make(self, weights: Path, version: int) -> Path:
        """A folder with these weights, which stays whole when `weights` is deleted. Raises BadWeights."""
        names = self._check(weights)
        # A name of its own: the same version may be in force, and have to be put back.
        folder = self._home / f"v{version}-{next(self._numbers)}"
        try:
            self._fill(folder, weights, self._renamed(names))
        except OSError as error:  # deleted meanwhile, or no space
            shutil.rmtree(folder, ignore_errors=True)
            raise BadWeights(f"{weights}: {error}") from error
        return folder

    def misfit(self, listed: Sequence[Sequence[Any]]) -> str | None:
        """Why tensors, told as (name, type, shape, ...), are not the model's; None when they are."""
        shapes = {name: tuple(shape) for name, _, shape, *_ in listed}
        try:
            check_names("the learner's offer", list(shapes), self._expected)
        except BadWeights as error:
            return str(error)
        for name, shape in shapes.items():
            if shape != tuple(self._expected[name].shape):
                return (
                    f"{name} has shape {shape}; the model's is {tuple(self._expected[name].shape)}"
                )
        renamed = self._renamed(list(shapes))
        return f"vLLM knows {renamed} by other names" if renamed else None

    def _fill(self, folder: Path, weights: Path, renamed: dict[str, str]) -> None:
        folder.mkdir(parents=True)
        for file in self._model_dir.iterdir():
            if file.is_file() and not file.name.endswith(_WEIGHT_SUFFIXES):
                (folder / file.name).symlink_to(file)
        if renamed:
            _copy_renamed(weights, folder / WEIGHTS, renamed)
        else:
            _link(weights, folder / WEIGHTS)

    def _check(self, file: Path) -> list[str]:
        """The names of its tensors, all of which fit."""
        try:
            with safe_open(file, framework="pt") as stored:
                names = list(stored.keys())
                check_names(file, names, self._expected)
                for name in names:
                    check_tensor(file, name, stored.get_tensor(name), self._expected[name])
                return names
        except (OSError, SafetensorError) as error:
            raise BadWeights(f"{file}: not readable as safetensors: {error}") from error

    def _renamed(self, names: list[str]) -> dict[str, str]:
        """Tensors to be renamed: vLLM looks for tied embeddings under the name of the input's alone."""
        tied = [name for name, tensor in self._expected.items() if tensor is self._input]
        present = next(name for name in tied if name in names)
        return {} if present == self._input_name else {present: self._input_name}


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK):
            raise
        shutil.copyfile(source, target)


def _copy_renamed(source: Path, target: Path, renamed: dict[str, str]) -> None:
    """Copy a safetensors file with other names in its header; the data is copied as it is."""
    with source.open("rb") as old, target.open("wb") as new:
        header = json.loads(old.read(int.from_bytes(old.read(8), "little")))
        header = {renamed.get(name, name): entry for name, entry in header.items()}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % _HEADER_ALIGNMENT)
        new.write(len(text).to_bytes(8, "little") + text)
        shutil.copyfileobj(old, new, 1 << 22)
