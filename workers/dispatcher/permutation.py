"""A fixed shuffle with random access: position -> index without building the shuffled list.

The same key and size give the same order on every machine and library version, so that a
restart needs only the position.
"""

import hashlib
from functools import lru_cache

ROUNDS = 6
_WORD = (1 << 64) - 1


@lru_cache(maxsize=64)
def _round_keys(key: str) -> tuple[int, ...]:
    digest = hashlib.blake2b(key.encode(), digest_size=8 * ROUNDS).digest()
    return tuple(int.from_bytes(digest[i : i + 8], "little") for i in range(0, len(digest), 8))


def _mix(word: int) -> int:
    """The finaliser of splitmix64: every input bit moves every output bit."""
    word = ((word ^ word >> 30) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ word >> 27) * 0x94D049BB133111EB) & _WORD
    return word ^ word >> 31


def permute(position: int, *, size: int, key: str) -> int:
    """Where `position` goes in the permutation of 0..size-1 that `key` names; a bijection.

    A balanced Feistel network over the next even power of two, walked until it lands inside.
    """
    if not 0 <= position < size:
        raise IndexError(f"position {position}: expected 0..{size - 1}")
    bits = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << bits) - 1
    keys = _round_keys(key)
    value = position
    while True:
        left, right = value >> bits, value & mask
        for round_key in keys:
            left, right = right, left ^ (_mix(right ^ round_key) & mask)
        value = left << bits | right
        if value < size:
            return value
