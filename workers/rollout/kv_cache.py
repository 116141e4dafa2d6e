"""Keys and values of all rows in one block: row r keeps its token at position p in slot p.

Rows 0..n-1 are in use and lie together, so that attention reads plain slices. Slots beyond a row's
length hold old values of other rows, finite and masked. Legend: N layers, R rows, H key/value heads,
S slots, D head size.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

SLOT_STEP = 32
"""The block grows by whole steps, and by half at least, so that it is copied seldom."""


@dataclass(frozen=True)
class CacheShape:
    layers: int
    heads: int
    head_size: int


class KvCache:
    def __init__(self, shape: CacheShape, *, device: torch.device, dtype: torch.dtype) -> None:
        self.shape = shape
        self.block = torch.zeros(
            (2 * shape.layers, 0, shape.heads, 0, shape.head_size), device=device, dtype=dtype
        )
        """(2N, R, H, S, D): keys of layer i at 2i, values at 2i + 1."""

    @property
    def rows(self) -> int:
        return self.block.shape[1]

    @property
    def slots(self) -> int:
        return self.block.shape[3]

    def keys(self, layer: int) -> Tensor:
        return self.block[2 * layer]

    def values(self, layer: int) -> Tensor:
        return self.block[2 * layer + 1]

    def reserve(self, rows: int, slots: int) -> None:
        """Room for so many rows and slots; what is there stays."""
        if rows <= self.rows and slots <= self.slots:
            return
        rows = max(rows, self.rows * 3 // 2) if rows > self.rows else self.rows
        slots = max(slots, self.slots * 3 // 2) if slots > self.slots else self.slots
        slots = -(-slots // SLOT_STEP) * SLOT_STEP
        old = self.block
        # Zeros, not empty memory: a masked slot is multiplied by 0, and 0 * NaN is NaN.
        self.block = old.new_zeros((old.shape[0], rows, old.shape[2], slots, old.shape[4]))
        self.block[:, : old.shape[1], :, : old.shape[3]] = old

    def move(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Copy the first `length` slots of some rows over others."""
        self.block[:, list(targets), :, :length] = self.block[:, list(sources), :, :length]

    def wipe(self, rows: Sequence[int]) -> None:
        """Forget rows that may hold values that are not finite, before others take their place."""
        self.block[:, list(rows)] = 0
