"""Tensors that grow with what is put into them."""

from torch import Tensor


def enlarged(old: Tensor, shape: tuple[int, ...]) -> Tensor:
    """At least of this shape, what is there kept and the rest zero."""
    shape = tuple(max(a, b) for a, b in zip(old.shape, shape, strict=True))
    if shape == tuple(old.shape):
        return old
    new = old.new_zeros(shape)
    new[tuple(slice(n) for n in old.shape)] = old
    return new
