"""Batches: bounded in rows and bytes, each going on where the one before ended."""

import asyncio

from broker.topology import Log
from store.intake import BATCH_BYTES, Batch, Chunk, batches
from tests.store_world import RUN, World, a_small_run, end, started


def decoded_batches(chunks: list[Chunk], count: int, *, rows: int) -> list[Batch]:
    """The first batches of what was read."""

    async def collect() -> list[Batch]:
        waiting: asyncio.Queue[Chunk] = asyncio.Queue()
        found: asyncio.Queue[Batch] = asyncio.Queue()
        for chunk in chunks:
            waiting.put_nowait(chunk)
        task = asyncio.create_task(
            batches(waiting, Batch(RUN, {}, []), found, rows=rows, flush_s=0.05)
        )
        try:
            return [await found.get() for _ in range(count)]
        finally:
            task.cancel()

    return asyncio.run(collect())


def test_a_batch_goes_on_where_the_one_before_ended():
    stored = a_small_run().stored(Log.GENERATED)

    first, second = decoded_batches([stored[:3], stored[3:]], 2, rows=1)

    assert (first.sequences, second.sequences) == ({Log.GENERATED: 3}, {Log.GENERATED: len(stored)})
    assert first.gaps == second.gaps == []
    assert first.encoded is not None


def test_what_came_after_an_end_of_the_run_is_late_in_the_next_batch():
    world = World()
    world.say(started())
    end(world)

    first, second = decoded_batches([world.stored(Log.LEDGER)] * 2, 2, rows=1)

    assert second.late == first.endings
    assert len(first.endings) == 1


def test_a_batch_of_few_rows_is_full_with_enough_bytes():
    (stored, *_) = a_small_run().stored(Log.GENERATED)
    batch = Batch(RUN, {}, [])

    for _ in range(3):
        batch.byte_count += BATCH_BYTES // 3
        assert not batch.full(rows=1_000)
    batch.add(stored)

    assert batch.full(rows=1_000)
