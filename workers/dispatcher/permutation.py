"""A fixed shuffle with random access: position -> index without building the shuffled list.

The same key and size give the same order on every machine and library version, so that a
restart needs only the position.
"""

import hashlib

ROUNDS = 6


def _round(key: bytes, number: int, half: int) -> int:
    digest = hashlib.blake2b(f"{number}:{half}".encode(), digest_size=8, key=key).digest()
    return int.from_bytes(digest, "little")


def permute(position: int, *, size: int, key: str) -> int:
    """Where `position` goes in the permutation of 0..size-1 that `key` names; a bijection.

    A balanced Feistel network over the next even power of two, walked until it lands inside.
    """
    if not 0 <= position < size:
        raise IndexError(f"position {position}: expected 0..{size - 1}")
    bits = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << bits) - 1
    secret = hashlib.blake2b(key.encode(), digest_size=32).digest()
    value = position
    while True:
        left, right = value >> bits, value & mask
        for number in range(ROUNDS):
            left, right = right, left ^ (_round(secret, number, right) & mask)
        value = left << bits | right
        if value < size:
            return value
