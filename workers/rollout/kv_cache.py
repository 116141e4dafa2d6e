"""Keys and values of all rows, in blocks of S slots: a token at position p is in slot p % S of block p // S.

Rows 0..n-1 are in use and lie together, so that attention reads plain slices. Slots beyond a row's
length hold old values of other rows, finite and masked. Legend: C blocks, N layers, R rows, H key/value
heads, S slots of a block, D head size.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

BLOCK_SLOTS = 32
"""Of a block, unless there is a single one, which grows by steps of these or more."""


@dataclass(frozen=True)
class CacheShape:
    layers: int
    heads: int
    head_size: int


class KvCache:
    def __init__(
        self, shape: CacheShape, *, device: torch.device, dtype: torch.dtype, whole_blocks: bool
    ) -> None:
        """whole_blocks: read to the last slot, as a CPU should, for which memory without gaps is faster than
        half of it (ADR 11); else there is a single block, read as far as rows reach."""
        self.shape = shape
        self._whole_blocks = whole_blocks
        self.block = torch.zeros(
            (0, 2 * shape.layers, 0, shape.heads, 0, shape.head_size), device=device, dtype=dtype
        )
        """(C, 2N, R, H, S, D): keys of layer i at 2i, values at 2i + 1."""

    @property
    def rows(self) -> int:
        return self.block.shape[2]

    def keys(self, layer: int) -> Tensor:
        """(C, R, H, S, D), as `values`."""
        return self.block[:, 2 * layer]

    def values(self, layer: int) -> Tensor:
        return self.block[:, 2 * layer + 1]

    def read_slots(self, lengths_B: np.ndarray) -> np.ndarray:
        """How many are read for rows of so many tokens."""
        if not self._whole_blocks:
            return lengths_B
        return -(-lengths_B // BLOCK_SLOTS) * BLOCK_SLOTS

    def reserve(self, rows: int, slots: int) -> None:
        """Room for so many rows and slots; what is there stays."""
        blocks, size = -(-slots // BLOCK_SLOTS), BLOCK_SLOTS
        if not self._whole_blocks:
            blocks, size = 1, blocks * size
        wanted = (blocks, rows, size)
        held = (self.block.shape[0], self.block.shape[2], self.block.shape[4])
        if all(want <= have for want, have in zip(wanted, held, strict=True)):
            return
        # By half at least, so that it is copied seldom.
        blocks, rows, size = (
            have if want <= have else max(want, have * 3 // 2)
            for want, have in zip(wanted, held, strict=True)
        )
        old = self.block
        # Zeros, not empty memory: a masked slot is multiplied by 0, and 0 * NaN is NaN.
        self.block = old.new_zeros((blocks, old.shape[1], rows, old.shape[3], size, old.shape[5]))
        self.block[: held[0], :, : held[1], :, : held[2]] = old

    def fill(self, layer: int, first_row: int, key: Tensor, value: Tensor) -> None:
        """Store keys and values (B, H, T, D) of the first T tokens of rows that follow one another."""
        rows = slice(first_row, first_row + len(key))
        for kept, new in ((self.keys(layer), key), (self.values(layer), value)):
            for block, part in zip(kept, new.split(self.block.shape[4], dim=2), strict=False):
                block[rows, :, : part.shape[2]] = part

    def places(self, positions: Tensor) -> Tensor:
        """For `put`: where the first B rows keep the token at a position each, (B) int64 -> (B * H)."""
        _, halves, rows, heads, slots, _ = self.block.shape
        first_B = positions // slots * (halves * rows * heads * slots) + positions % slots
        heads_of_rows = torch.arange(len(positions) * heads, device=positions.device)
        return heads_of_rows * slots + first_B.repeat_interleave(heads)

    def put(self, layer: int, places: Tensor, key: Tensor, value: Tensor) -> None:
        """Store one token's keys and values (B, H, 1, D) of the first B rows."""
        _, _, rows, heads, slots, size = self.block.shape
        line = self.block.view(-1, size)
        for half, new in ((2 * layer, key), (2 * layer + 1, value)):
            line[half * rows * heads * slots :].index_copy_(0, places, new.reshape(-1, size))

    def move(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Copy the first `length` slots of some rows over others."""
        blocks = -(-length // self.block.shape[4])
        used = self.block[:blocks, ..., :length, :]
        used[:, :, list(targets)] = used[:, :, list(sources)]

    def wipe(self, rows: Sequence[int]) -> None:
        """Forget rows that may hold values that are not finite, before others take their place."""
        self.block[:, :, list(rows)] = 0
