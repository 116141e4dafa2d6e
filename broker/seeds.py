"""Seeds that any process can derive again."""

import hashlib


def row_seed(run_seed: int, group_id: str, index: int) -> int:
    """Seed of one answer, in 0..2**63-1: depends on nothing but the run's seed, the group and the index."""
    digest = hashlib.sha256(f"{run_seed}:{group_id}:{index}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
