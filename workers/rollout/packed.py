"""Linear layers whose weights are laid out once a version for products on a CPU, not at every decoding step.

A step multiplies few rows with large matrices, and a BLAS copies each matrix into a layout of its own before
it multiplies: of a model larger than the cache that is most of the step. The layout is oneDNN's, through the
operators that torch's own compiler uses.
"""

import platform
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workers.rollout.model import install_weights, placed, read_weights

SMALLEST = 100_000
"""Elements of a matrix that is packed; smaller ones stay in a core's cache, where torch's own product is as
fast or faster (ADR 11)."""
ROWS = 16
"""The layout is made for products with about so many rows, and is as good for others."""


class PackedLinear(nn.Module):
    """In the place of a `nn.Linear`, under the same names; computes nothing before its first `packed`."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.packed: Tensor | None = None

    def forward(self, values: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        rows = values.shape[:-1].numel()
        more = planned_rows(rows) - rows
        if not more:
            return self._product(values)
        line = F.pad(values.reshape(rows, values.shape[-1]), (0, 0, 0, more))
        return self._product(line)[:rows].unflatten(0, values.shape[:-1])

    def _product(self, values: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(values, self.packed, self.bias, "none", [], "")


def planned_rows(rows: int) -> int:
    """How many to compute for so many: at least these, at most an eighth more. Pure.

    oneDNN makes code for each number of rows and keeps it, 0.3 MB for each shape of layer. Kept for every
    number of tokens that prompts may have together, it would take more memory than the model.
    """
    step = 1 << max(0, rows.bit_length() - 4)
    return -(-rows // step) * step


@dataclass(frozen=True)
class Weights:
    """A version's model weights, read and checked, changing nothing yet."""

    plain: dict[str, Tensor]
    """By their names in the state dict; what only packed layers read is one number, spread out."""
    packed: dict[str, Tensor]
    """By the layer's name."""


def pack_linears(model: nn.Module, *, smallest: int = SMALLEST) -> None:
    """Replace the model's large linear layers in place, where its device and type allow it."""
    parameter = next(model.parameters())
    if not _can_pack(parameter.device, parameter.dtype):
        return
    for name, module in list(model.named_modules()):
        if type(module) is nn.Linear and module.weight.numel() >= smallest:
            model.set_submodule(name, PackedLinear(module))


def _can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    return (
        device.type == "cpu"
        and dtype is torch.float32
        and platform.machine() in ("x86_64", "AMD64")
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )


def stage(model: nn.Module, file: Path) -> Weights:
    """Read a safetensors file. Raises BadWeights."""
    layers: dict[int, list[str]] = defaultdict(list)
    """Names of the packed layers by the weight that they read."""
    kept: set[int] = set()
    """What others read, or a packed layer as it is: biases."""
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            if isinstance(module, PackedLinear) and parameter is module.weight:
                layers[id(parameter)].append(name)
            else:
                kept.add(id(parameter))
    plain: dict[str, Tensor] = {}
    packed: dict[str, Tensor] = {}
    for name, stored, own in read_weights(model, file):
        readers = layers.get(id(own), [])
        for layer in readers:
            packed[layer] = torch.ops.mkldnn._reorder_linear_weight(stored.to(own.dtype), ROWS)
        only_packed = readers and id(own) not in kept
        plain[name] = own.new_zeros(()).expand(own.shape) if only_packed else placed(stored, own)
    return Weights(plain, packed)


def install(model: nn.Module, weights: Weights) -> None:
    """Put them in force; a matter of pointers."""
    install_weights(model, weights.plain)
    for name, tensor in weights.packed.items():
        layer = model.get_submodule(name)
        assert isinstance(layer, PackedLinear)  # staged for this model
        layer.packed = tensor
