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
    """Rows in a line, and how to lay them side by side for attention.

    First in the line come the beginnings that rows have in common, each once: a hidden state depends on
    what stands before it alone, so one computation does for all rows of a prompt.
    """

    input_ids_S: Tensor
    position_ids_S: Tensor
    """Within the token's row."""
    rows: int
    width: int
    """L."""
    slots_BL: Tensor | None
    """Place in the line of each row's tokens, 0 beyond its end; None: rows of one length, nothing shared."""
    back_S: Tensor | None
    """Place in B*L of each token of the line; of the first row that has it."""
    again: tuple[Tensor, ...]
    """Places in B*L of the line's first tokens in the second row that has them, in the third and so on."""
    ends_B: np.ndarray
    """Place in the line behind each row's last token; a row's tokens that nobody shares lie together."""


def pack(
    ids: Sequence[np.ndarray], device: torch.device, *, beginnings: Sequence[int] | None = None
) -> Packed:
    """The rows' token ids (int) as one line; at least one row, none empty.

    beginnings: of each row, how many of its first tokens, but not all, may be shared with rows that begin
    with the very same ones; None: nothing is shared.
    """
    rows, lengths_B = len(ids), np.array([len(row) for row in ids])
    shared = _shared(ids, beginnings or [0] * rows)
    shared_B, shared_at_B, at = np.zeros(rows, np.int64), np.zeros(rows, np.int64), 0
    for some, length in shared:
        shared_B[some], shared_at_B[some] = length, at
        at += length
    ends_B = at + np.cumsum(lengths_B - shared_B)
    width = int(lengths_B.max())
    at_BL = np.arange(width)[None, :]
    real_BL, own_BL = at_BL < lengths_B[:, None], at_BL >= shared_B[:, None]
    slots_BL = at_BL + np.where(own_BL, (ends_B - lengths_B)[:, None], shared_at_B[:, None])
    # The shared tokens' places in the first row that has them, in the second and so on.
    turns = [
        np.concatenate([some[n] * width + np.arange(m) for some, m in shared if len(some) > n])
        for n in range(len(shared[0][0]) if shared else 0)
    ]
    back_S = np.concatenate([*turns[:1], np.flatnonzero(real_BL & own_BL)])

    def tensor(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(device=device, dtype=torch.int64)

    laid = bool(shared) or bool((lengths_B != width).any())
    return Packed(
        input_ids_S=tensor(
            np.concatenate(
                [*(ids[some[0]][:m] for some, m in shared)]
                + [row[m:] for row, m in zip(ids, shared_B, strict=True)]
            )
        ),
        position_ids_S=tensor(back_S % width),
        rows=rows,
        width=width,
        slots_BL=tensor(np.where(real_BL, slots_BL, 0)) if laid else None,
        back_S=tensor(back_S) if laid else None,
        again=tuple(map(tensor, turns[1:])),
        ends_B=ends_B,
    )


def _shared(ids: Sequence[np.ndarray], beginnings: Sequence[int]) -> list[tuple[np.ndarray, int]]:
    """(rows, tokens) of each beginning that several rows have; those of most rows first.

    In that order, what a further row of each shares is a beginning of the line.
    """
    owners: dict[bytes, list[int]] = {}
    for row, length in enumerate(beginnings):
        owners.setdefault(ids[row][:length].astype(np.int64).tobytes(), []).append(row)
    found = [(np.array(some), beginnings[some[0]]) for some in owners.values()]
    return sorted(
        ((some, length) for some, length in found if length and len(some) > 1),
        key=lambda one: -len(one[0]),
    )


class _Spread(torch.autograd.Function):
    """(S, ...) -> (B*L, ...). Padding repeats token 0; nothing of it ever reaches a real token."""

    @staticmethod
    def forward(ctx: Any, line: Tensor, slots: Tensor, back: Tensor, *again: Tensor) -> Tensor:
        ctx.save_for_backward(back, *again)
        return line.index_select(0, slots)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # Gathers, the shared tokens' once for each row that has them: index_add, which autograd would
        # take, goes token by token on CPUs.
        back, *again = ctx.saved_tensors
        found = grads[0].index_select(0, back)
        for slots in again:
            found[: len(slots)] += grads[0].index_select(0, slots)
        return found, *(None for _ in range(2 + len(again)))


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
        line = _Spread.apply(line, packed.slots_BL.flatten(), packed.back_S, *packed.again)
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
