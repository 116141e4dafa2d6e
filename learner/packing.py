"""Rows laid end to end for the model, so that nothing but attention ever sees padding.

Plugged into transformers' own models through its attention registry; knows no model family.
Legend: S tokens of all rows in a line, B rows, L longest row, Q query heads, H key/value heads, D head size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface

NAME = "sluice_packed"
"""Of this attention in transformers' registry. No mask function is registered under it, so the model
builds no mask of its own: causality within a row is all there is."""


@dataclass(frozen=True)
class Packed:
    """Rows in a line, and how to lay them side by side for attention."""

    input_ids_S: Tensor
    position_ids_S: Tensor
    """Within the token's row."""
    rows: int
    width: int
    """L."""
    slots_BL: Tensor | None
    """Place in the line of each row's tokens, 0 beyond its end; None: all rows are of one length."""
    real_BL: Tensor | None
    """bool: not beyond the row's end."""
    back_S: Tensor | None
    """Place in B*L of each token of the line."""


def pack(ids: Sequence[np.ndarray], device: torch.device) -> Packed:
    """The rows' token ids (int) as one line; at least one row, none empty."""
    lengths = np.array([len(row) for row in ids])
    rows, width = len(ids), int(lengths.max())
    at_BL = np.arange(width)[None, :]
    real_BL = at_BL < lengths[:, None]
    starts_B = np.cumsum(lengths) - lengths

    def tensor(values: np.ndarray, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.from_numpy(values).to(device=device, dtype=dtype)

    ragged = bool((lengths != width).any())
    return Packed(
        input_ids_S=tensor(np.concatenate(ids)),
        position_ids_S=tensor(np.broadcast_to(at_BL, real_BL.shape)[real_BL]),
        rows=rows,
        width=width,
        slots_BL=tensor(np.where(real_BL, starts_B[:, None] + at_BL, 0)) if ragged else None,
        real_BL=tensor(real_BL, torch.bool) if ragged else None,
        back_S=tensor(np.flatnonzero(real_BL)) if ragged else None,
    )


class _Spread(torch.autograd.Function):
    """(S, ...) -> (B*L, ...). Padding repeats token 0; nothing of it ever reaches a real token."""

    @staticmethod
    def forward(ctx: Any, line: Tensor, slots: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return line.index_select(0, slots)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # Each real token has one slot, so the gradient is a gather too: index_add, which autograd
        # would take, goes token by token on CPUs.
        (back,) = ctx.saved_tensors
        return grads[0].index_select(0, back), None, None


class Chosen(torch.autograd.Function):
    """Distinct elements of the first axis: (M, ...) and (N,) -> (N, ...)."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.size = values.shape[0]
        return values.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (index,) = ctx.saved_tensors
        found = grads[0].new_zeros((ctx.size, *grads[0].shape[1:]))
        return found.index_copy_(0, index, grads[0]), None


def chosen(values: Tensor, index: Tensor) -> Tensor:
    """`values[index]` for distinct indices, with a gradient that is not added element by element."""
    return Chosen.apply(values, index)  # pyright: ignore[reportReturnType]


def _side_by_side(packed: Packed, heads: Tensor) -> Tensor:
    """(1, H, S, D) -> (B, H, L, D)."""
    line = heads[0].transpose(0, 1)
    if packed.slots_BL is not None:
        line = _Spread.apply(line, packed.slots_BL.flatten(), packed.back_S)
    return line.unflatten(0, (packed.rows, packed.width)).transpose(1, 2)  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]


def _in_line(packed: Packed, heads: Tensor) -> Tensor:
    """(B, Q, L, D) -> (1, S, Q, D)."""
    spread = heads.transpose(1, 2).flatten(0, 1)
    return (spread if packed.back_S is None else chosen(spread, packed.back_S))[None]


def _causal(query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
    """Attention of each row within itself, to the left; window: at most so many tokens back."""
    shared = query.shape[1] // key.shape[1]
    if shared > 1:
        key, value = (x.repeat_interleave(shared, dim=1) for x in (key, value))
    length = query.shape[2]
    mask = None
    if window is not None and window < length:
        at = torch.arange(length, device=query.device)
        mask = (at[None, :] <= at[:, None]) & (at[None, :] > at[:, None] - window)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=scale
    )


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    packed: Packed | None = None,
    sliding_window: int | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Without `packed`, (B, Q, L, D) as transformers itself would: rows of one length."""
    if packed is None:
        out = _causal(query, key, value, scaling, sliding_window)
        return out.transpose(1, 2), None
    query, key, value = (_side_by_side(packed, x) for x in (query, key, value))
    return _in_line(packed, _causal(query, key, value, scaling, sliding_window)), None


AttentionInterface.register(NAME, _attention)
