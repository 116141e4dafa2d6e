"""Attention over the row cache, plugged into transformers' own models through its attention registry.

The model hands over queries, keys and values of each layer after its own rotary embedding and norms;
nothing here knows a model family. Grouped-query heads share their keys without a copy.
Legend: B rows, Q query heads, H key/value heads, T new tokens, L slots attended to, D head size.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface

from workers.rollout.kv_cache import KvCache
from workers.rollout.runs import Run

NAME = "sluice_rows"
"""Of this attention in transformers' registry. No mask function is registered under it, so the model
builds no mask of its own: the pass below masks."""


class Pass(Protocol):
    """One forward pass: stores the new keys and values, and attends."""

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        window: int | None,
    ) -> Tensor:
        """query (B, Q, T, D), key and value (B, H, T, D) -> (B, T, Q, D)."""
        ...


class Prefill:
    """Prompts right-padded to one length; each is stored in as many rows as it will have answers.

    Causal attention never looks at the padding, which lies to the right of every real token.
    """

    def __init__(self, cache: KvCache, first_row: int, copies: Tensor, length: int) -> None:
        """copies (B,) int64: rows per prompt, which follow one another from `first_row` on."""
        self._cache = cache
        self._sources = torch.repeat_interleave(copies)
        self._first_row = first_row
        self._length = length

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        window: int | None,
    ) -> Tensor:
        self._cache.fill(layer, self._first_row, key[self._sources], value[self._sources])
        shared = query.shape[1] // key.shape[1]
        if shared > 1:
            key, value = (x.repeat_interleave(shared, dim=1) for x in (key, value))
        mask = None
        if window is not None and window < self._length:
            at = torch.arange(self._length, device=query.device)
            mask = (at[None, :] <= at[:, None]) & (at[None, :] > at[:, None] - window)
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, scale=scale
        )
        return out.transpose(1, 2)


class Decode:
    """One token for each of the first B rows, each at a position of its own."""

    def __init__(self, cache: KvCache, positions: Tensor, runs: Sequence[Run]) -> None:
        """positions (B,) int64, those of each run all below its length."""
        self._cache = cache
        self._positions = positions
        self._runs = runs
        self._places = cache.places(positions)
        self._masks: dict[tuple[Run, int | None], Tensor] = {}

    def _mask(self, run: Run, window: int | None, shared: int, dtype: torch.dtype) -> Tensor:
        """(B * H, Q / H, L): 0 where the row may look, -inf elsewhere; made once per pass."""
        if (run, window) not in self._masks:
            at = torch.arange(run.length, device=self._positions.device)
            positions = self._positions[run.first : run.end, None]
            hidden = at > positions
            if window is not None:
                hidden |= at <= positions - window
            mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
            mask.masked_fill_(hidden, float("-inf"))
            expanded = mask[:, None, None].expand(-1, self._cache.shape.heads, shared, -1)
            self._masks[run, window] = expanded.reshape(-1, shared, run.length)
        return self._masks[run, window]

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        window: int | None,
    ) -> Tensor:
        rows, heads, _, size = key.shape
        shared = query.shape[1] // heads
        self._cache.put(layer, self._places, key, value)
        keys, values = self._cache.keys(layer), self._cache.values(layer)
        query = query.reshape(rows * heads, shared, size)
        attend = _products if query.device.type == "cpu" else _fused
        found: list[Tensor] = []
        for run in self._runs:
            # The rows of a run lie together.
            mask = self._mask(run, window, shared, query.dtype)
            k, v = (_blocks(x, run) for x in (keys, values))
            found.append(attend(query[run.first * heads : run.end * heads], k, v, mask, scale))
        whole = found[0] if len(found) == 1 else torch.cat(found)
        return whole.view(rows, 1, heads * shared, size)


def _blocks(kept: Tensor, run: Run) -> list[Tensor]:
    """What a run reads of keys or values (C, R, H, S, D): of each block a view (B * H, up to S, D)."""
    blocks = -(-run.length // kept.shape[3])
    # Of several blocks each is read as a whole.
    return [block[run.first : run.end].flatten(0, 1)[:, : run.length] for block in kept[:blocks]]


def _fused(
    query: Tensor, keys: list[Tensor], values: list[Tensor], mask: Tensor, scale: float
) -> Tensor:
    """torch's kernel, for one block; (B * H, Q / H, D) as all below."""
    return F.scaled_dot_product_attention(query, *keys, *values, attn_mask=mask, scale=scale)


def _products(
    query: Tensor, keys: list[Tensor], values: list[Tensor], mask: Tensor, scale: float
) -> Tensor:
    """Two batched products a block: for one query a row, a third faster on CPUs than the kernel."""
    slots = keys[0].shape[1]
    scores = torch.cat(
        [
            torch.baddbmm(hidden, query, block.transpose(1, 2), alpha=scale)
            for hidden, block in zip(mask.split(slots, dim=2), keys, strict=True)
        ],
        dim=2,
    )
    weights = torch.softmax(scores, dim=-1).split(slots, dim=2)
    found = torch.bmm(weights[0], values[0])
    for weight, block in zip(weights[1:], values[1:], strict=True):
        found.baddbmm_(weight, block)
    return found


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    rows: Pass,
    sliding_window: int | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    layer = module.layer_idx
    if not isinstance(layer, int):
        raise TypeError(f"layer_idx {layer!r} of {type(module).__name__}: expected its number")
    return rows.attend(layer, query, key, value, scaling, sliding_window), None


AttentionInterface.register(NAME, _attention)
