"""A number that tells two tensors of the same shape and type apart, computed where they lie.

Knows no torch: the tensor's own methods do the work, and give the same on every device, since integers
that wrap around add up to the same in any order.
"""

from typing import Any

MASK = 2**64 - 1
CHUNK = 2**24
"""Values at once; each takes some 30 bytes meanwhile."""


def fingerprint(tensor: Any) -> int:
    """Sum over the values' bit patterns, each times its position from 1, modulo 2**64.

    tensor: of 2 or 4 bytes a value.
    """
    flat = tensor.detach().reshape(-1)
    widths = {2: flat[:0].short().dtype, 4: flat[:0].int().dtype}
    bits = flat.view(widths[flat.element_size()])
    total = 0
    for first in range(0, len(bits), CHUNK):
        part = bits[first : first + CHUNK].long()
        positions = part.new_ones(len(part)).cumsum(0) + first
        total += int((part * positions).sum())
    return total & MASK
