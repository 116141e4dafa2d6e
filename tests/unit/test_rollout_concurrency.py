"""How many answers an engine works on at once."""

import asyncio

import pytest

from workers.rollout.concurrency import LOWER_BY, RAISE_BY, SETTLE_S, Room, RowLimit


def test_a_full_cache_lowers_the_limit_and_a_roomy_one_raises_it_again():
    limit = RowLimit(64)

    limit.observe(cache_use=0.95, preempted=0, rows=64, at_s=0.0)
    lowered = limit.now
    limit.observe(cache_use=0.5, preempted=0, rows=lowered, at_s=SETTLE_S)

    assert lowered == int(64 * LOWER_BY)
    assert limit.now == lowered + RAISE_BY


def test_an_answer_thrown_out_lowers_the_limit_whatever_the_cache_says_now():
    limit = RowLimit(64)

    limit.observe(cache_use=0.1, preempted=1, rows=40, at_s=0.0)

    assert limit.now == int(40 * LOWER_BY)


@pytest.mark.parametrize("cache_use", [0.0, 1.0])
def test_the_limit_stays_between_one_and_the_most(cache_use: float):
    limit = RowLimit(16)

    for second in range(100):
        limit.observe(cache_use=cache_use, preempted=0, rows=limit.now, at_s=second * SETTLE_S)

    assert limit.now == (1 if cache_use else 16)


def test_a_limit_that_nobody_reaches_is_not_raised():
    limit = RowLimit(64)
    limit.observe(cache_use=0.95, preempted=0, rows=64, at_s=0.0)
    lowered = limit.now

    limit.observe(cache_use=0.1, preempted=0, rows=3, at_s=10.0)

    assert limit.now == lowered


def test_a_change_is_given_time_to_show_its_effect():
    limit = RowLimit(64)

    for _ in range(5):
        limit.observe(cache_use=0.95, preempted=0, rows=64, at_s=0.0)

    assert limit.now == int(64 * LOWER_BY)


async def _stay(room: Room, size: int, seen: list[int], leave: asyncio.Event) -> None:
    async with room.of(size):
        seen.append(size)
        await leave.wait()


async def test_groups_enter_whole_and_in_order():
    room, seen, leave = Room(RowLimit(8)), [], asyncio.Event()
    tasks = [asyncio.create_task(_stay(room, size, seen, leave)) for size in (4, 5, 3)]

    await asyncio.sleep(0)
    at_first = list(seen)
    leave.set()
    await asyncio.gather(*tasks)

    assert at_first == [4], "5 does not fit beside 4, and 3 does not overtake it"
    assert seen == [4, 5, 3]
    assert room.rows == 0


async def test_a_group_larger_than_the_limit_goes_in_alone():
    room, seen, leave = Room(RowLimit(2)), [], asyncio.Event()
    leave.set()

    async with asyncio.timeout(5):
        await asyncio.gather(*(_stay(room, size, seen, leave) for size in (3, 1, 3)))

    assert seen == [3, 1, 3]


async def test_a_wait_that_is_cancelled_frees_its_place_for_those_behind():
    room, seen, leave = Room(RowLimit(4)), [], asyncio.Event()
    tasks = [asyncio.create_task(_stay(room, size, seen, leave)) for size in (3, 4, 1)]
    await asyncio.sleep(0)

    tasks[1].cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert seen == [3, 1]
    leave.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert room.rows == 0


async def test_a_group_cancelled_in_the_moment_it_is_let_in_leaves_no_trace():
    room, seen, leave = Room(RowLimit(4)), [], asyncio.Event()
    first = asyncio.create_task(_stay(room, 4, seen, leave))
    second = asyncio.create_task(_stay(room, 4, seen, leave))
    await asyncio.sleep(0)

    leave.set()
    await first
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)

    assert room.rows == 0


async def test_a_wait_cancelled_in_the_moment_its_place_falls_free_is_passed_over():
    room, seen, leave = Room(RowLimit(4)), [], asyncio.Event()
    never = asyncio.Event()
    first = asyncio.create_task(_stay(room, 4, seen, leave))
    waiting = [asyncio.create_task(_stay(room, size, seen, never)) for size in (4, 2)]
    await asyncio.sleep(0)

    waiting[0].cancel()
    room.rows -= 4
    room.admit()
    room.rows += 4
    leave.set()
    await first

    await asyncio.sleep(0)
    assert seen == [4, 2]
    waiting[1].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert room.rows == 0
