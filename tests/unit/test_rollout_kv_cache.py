"""What was stored for a token is read for it, in blocks or in one, whatever grows and moves meanwhile."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from workers.rollout.kv_cache import BLOCK_SLOTS, CacheShape, KvCache

LAYERS, HEADS, SIZE = 2, 3, 4
CPU = torch.device("cpu")
PROMPTS = st.lists(st.integers(0, 2 * BLOCK_SLOTS + 2), min_size=1, max_size=5)


def a_cache(whole_blocks: bool) -> KvCache:
    shape = CacheShape(layers=LAYERS, heads=HEADS, head_size=SIZE)
    return KvCache(shape, device=CPU, dtype=torch.float32, whole_blocks=whole_blocks)


def told(row: int, positions: Tensor) -> Tensor:
    """(2N, H, T, D): another number for each row, position, layer, half, head and place."""
    numbers = torch.arange(2 * LAYERS * HEADS * SIZE).reshape(2 * LAYERS, HEADS, 1, SIZE)
    return (numbers + 1000 * positions[:, None] + 1_000_000 * row).float()


def held(cache: KvCache, row: int, length: int) -> Tensor:
    """(2N, H, length, D) as attention finds it: block by block."""
    halves = [half for layer in range(LAYERS) for half in (cache.keys(layer), cache.values(layer))]
    return torch.stack([torch.cat(list(half[:, row]), dim=1) for half in halves])[:, :, :length]


@given(PROMPTS, st.integers(0, BLOCK_SLOTS + 3), st.booleans(), st.data())
def test_what_was_stored_is_found(
    prompts: list[int], tokens: int, whole_blocks: bool, data: st.DataObject
):
    cache = a_cache(whole_blocks)
    for row, prompt in enumerate(prompts):
        cache.reserve(row + 1, prompt + 1)  # grows while others are there
        stored = told(row, torch.arange(prompt))[:, None]
        for layer in range(LAYERS):
            cache.fill(layer, row, stored[2 * layer], stored[2 * layer + 1])
    for token in range(tokens):
        positions = torch.tensor(prompts) + token
        cache.reserve(len(prompts), int(positions.max()) + 1)
        places = cache.places(positions)
        stored = torch.stack([told(row, at[None]) for row, at in enumerate(positions)], dim=1)
        for layer in range(LAYERS):
            cache.put(layer, places, stored[2 * layer], stored[2 * layer + 1])
    owners, lengths = list(range(len(prompts))), [prompt + tokens for prompt in prompts]
    source = data.draw(st.sampled_from(owners))
    target = data.draw(st.sampled_from(owners))
    cache.move([source], [target], lengths[source])
    owners[target], lengths[target] = owners[source], lengths[source]

    for row, (owner, length) in enumerate(zip(owners, lengths, strict=True)):
        assert torch.equal(held(cache, row, length), told(owner, torch.arange(length)))


def test_rows_that_are_filled_together_lie_together():
    cache = a_cache(True)
    cache.reserve(4, 40)
    stored = torch.stack([told(row, torch.arange(40)) for row in (1, 2)], dim=1)

    cache.fill(0, 1, stored[0], stored[1])

    for row in (1, 2):
        assert torch.equal(held(cache, row, 40)[:2], told(row, torch.arange(40))[:2])
    assert not held(cache, 0, 40).any()
    assert not held(cache, 3, 40).any()


@pytest.mark.parametrize("whole_blocks", [True, False])
def test_wiped_rows_hold_nothing_and_others_what_they_did(whole_blocks: bool):
    cache = a_cache(whole_blocks)
    cache.reserve(3, 40)
    cache.block.fill_(float("nan"))

    cache.wipe([0, 2])

    assert not held(cache, 0, 40).any()
    assert not held(cache, 2, 40).any()
    assert held(cache, 1, 40).isnan().all()


def test_whole_blocks_are_read_or_what_rows_need():
    lengths = np.array([1, BLOCK_SLOTS, BLOCK_SLOTS + 1])

    in_blocks, as_needed = (a_cache(whole).read_slots(lengths) for whole in (True, False))

    assert in_blocks.tolist() == [BLOCK_SLOTS, BLOCK_SLOTS, 2 * BLOCK_SLOTS]
    assert as_needed.tolist() == lengths.tolist()


@given(st.integers(1, 200), st.integers(1, 200), st.booleans())
def test_there_is_a_slot_for_each_that_is_read(first: int, then: int, whole_blocks: bool):
    cache = a_cache(whole_blocks)
    for slots in (first, then):
        cache.reserve(1, slots)

    held_slots = cache.block.shape[0] * cache.block.shape[4]

    assert held_slots >= cache.read_slots(np.array([first, then])).max()
