"""A causal language model from a Hugging Face folder, whatever its family, ready for the row cache.

The folder needs no weights: those always come from a published version.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from broker.errors import BadConfiguration
from broker.exclusive import MODEL_LOADING
from workers.rollout import attention as rows
from workers.rollout.engine import BadWeights
from workers.rollout.kv_cache import CacheShape

# Their rotary frequencies change with the longest sequence of the batch, so rows would not be independent.
_BATCH_DEPENDENT_ROPE = ("dynamic", "longrope")

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
"""Of model weights."""

_RANDOM_FILLS = (
    "normal_", "trunc_normal_", "uniform_", "kaiming_uniform_", "kaiming_normal_",
    "xavier_uniform_", "xavier_normal_",
)  # fmt: skip


class _WithoutRandomNumbers(TorchFunctionMode):
    """Skips random initialisation in this thread: the values would be overwritten before their first use,
    and drawing them would move the process's generator under another role's feet."""

    def __torch_function__(
        self,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in _RANDOM_FILLS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def build_model(
    folder: Path, *, device: torch.device, dtype: torch.dtype, attention: str = rows.NAME
) -> PreTrainedModel:
    """The model of the folder's config.json with weights that still have to be installed.

    attention: of the row cache, or another by transformers' name, for whole sequences.
    """
    config = _config(folder)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in _BATCH_DEPENDENT_ROPE:
        raise BadConfiguration(
            f"{folder}/config.json: rope_type {rope['rope_type']!r} depends on the batch; "
            "expected one whose frequencies are fixed, such as default, linear, llama3 or yarn"
        )
    with MODEL_LOADING, _WithoutRandomNumbers():
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
    return model.to(device).eval().requires_grad_(False)


def _config(folder: Path) -> PreTrainedConfig:
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise BadConfiguration(
            f"{folder}/config.json: expected a transformers model: {error}"
        ) from error


def cache_shape(config: PreTrainedConfig) -> CacheShape:
    heads = config.num_attention_heads
    return CacheShape(
        layers=config.num_hidden_layers,
        heads=getattr(config, "num_key_value_heads", None) or heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
    )


def _ids(value: object) -> set[int]:
    """Token ids of a configuration entry: absent, one, or a list."""
    listed = value if isinstance(value, list) else [value]
    return {token for token in listed if isinstance(token, int)}


def _json(path: Path) -> dict[str, object]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def end_tokens(folder: Path) -> frozenset[int]:
    """Every id that ends an answer: of the generation config, the config and the tokenizer."""
    found = _ids(_json(folder / "generation_config.json").get("eos_token_id"))
    found |= _ids(_json(folder / "config.json").get("eos_token_id"))
    named = _json(folder / "tokenizer_config.json").get("eos_token")
    text = named.get("content") if isinstance(named, dict) else named
    if isinstance(text, str) and (folder / "tokenizer.json").exists():
        found |= _ids(Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id(text))
    return frozenset(found)


# --- weights ----------------------------------------------------------------------------------


def stage_weights(model: nn.Module, file: Path) -> dict[str, Tensor]:
    """Read a safetensors file to the model's device and dtype, complete and checked, changing nothing.

    Names are those of the state dict; of tensors that the model ties, one name is enough.
    """
    return {name: placed(stored, target) for name, stored, target in read_weights(model, file)}


def read_weights(model: nn.Module, file: Path) -> Iterator[tuple[str, Tensor, Tensor]]:
    """(name, tensor, the model's own) of each tensor of a safetensors file.

    All names are checked before the first, each tensor as it comes: none may be put in force before the last.
    It is the file's memory, and holds for as long as nobody writes into the file.
    """
    expected = model.state_dict(keep_vars=True)
    try:
        with safe_open(file, framework="pt") as stored:
            names = list(stored.keys())
            check_names(file, names, expected)
            for name in names:
                tensor = stored.get_tensor(name)
                check_tensor(file, name, tensor, expected[name])
                yield name, tensor, expected[name]
    except (OSError, SafetensorError) as error:
        raise BadWeights(f"{file}: not readable as safetensors: {error}") from error


def check_names(file: Path | str, names: list[str], expected: dict[str, Tensor]) -> None:
    """Raises BadWeights unless each tensor of the model is there, under one of its names, and no other."""
    unknown = sorted(set(names) - set(expected))
    covered = {id(expected[name]) for name in names if name in expected}
    missing = sorted(name for name, tensor in expected.items() if id(tensor) not in covered)
    if unknown or missing:
        raise BadWeights(
            f"{file}: tensors {unknown[:3]} are not the model's and {missing[:3]} are missing "
            f"({len(unknown)} and {len(missing)} in all)"
        )


def check_tensor(file: Path, name: str, stored: Tensor, expected: Tensor) -> None:
    """Raises BadWeights unless it has the model's shape and finite values."""
    if stored.shape != expected.shape:
        raise BadWeights(
            f"{file}: {name} has shape {tuple(stored.shape)}; the model's is {tuple(expected.shape)}"
        )
    if stored.dtype not in DTYPES and (stored.is_floating_point() or stored.is_complex()):
        raise BadWeights(f"{file}: {name} is {stored.dtype}; expected one of {DTYPES}")
    # Where anything is infinite an extreme is, where anything is NaN both are; to ask of each value takes
    # ten times as long.
    if stored.numel() and not all(torch.isfinite(end) for end in torch.aminmax(stored)):
        raise BadWeights(f"{file}: {name} holds values that are not finite")


def placed(stored: Tensor, expected: Tensor) -> Tensor:
    """A copy where the model has it: the file may be deleted while the weights are in force."""
    return stored.to(device=expected.device, dtype=expected.dtype, copy=True)


def install_weights(model: nn.Module, staged: dict[str, Tensor]) -> None:
    """Put staged weights in force; a matter of pointers."""
    targets = model.state_dict(keep_vars=True)
    for name, tensor in staged.items():
        targets[name].data = tensor
