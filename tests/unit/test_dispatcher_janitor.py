"""Purging: only what every reader has passed and no redo needs, and a fold afterwards says the same."""

import asyncio
from pathlib import Path

import pytest

from broker.messages import (
    CheckpointWritten,
    GroupRequested,
    LogPurged,
    ReaderAdvanced,
    StepPlanned,
)
from broker.telemetry import Health
from broker.topology import Log
from tests.builders import AT_US, WRITER
from tests.dispatcher_world import (
    Start,
    World,
    a_run,
    a_tokenizer_folder,
    a_world,
    playing,
    read_all,
    the_end,
    train_requests,
    two_sources,
    until,
)
from workers.dispatcher.following import catch_up
from workers.dispatcher.groups import Requested
from workers.dispatcher.janitor import Bounds, Janitor, bounds
from workers.dispatcher.outbox import Outbox
from workers.dispatcher.state import State

LIMIT_S = 30.0


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_tokenizer_folder(tmp_path_factory.mktemp("model"))


def a_state(*, checkpoint: int | None, open_requests: tuple[int, ...] = ()) -> State:
    """100 requests, of which these are open; all readers at 1,000, steps 1..9 hold ten each."""
    state = State(max_attempts=3)
    state.request_seq, state.sequence, state.last_train_sequence = 100, 100, 100
    for number in open_requests:
        state.groups.requested(Requested(f"{number:08d}-0-0", number, number))
    for step in range(1, 10):
        state.spans.planned(step, 10 * step, range(10 * step - 9, 10 * step + 1))
    for reader in ("policy", "learner", "recorder"):
        for log in Log:
            state.readers[reader, log] = 1000
    if checkpoint is not None:
        written = CheckpointWritten(
            writer_id=WRITER, at_us=AT_US, step=checkpoint, version=checkpoint, uri="none",
            digest="d", cursor=10 * checkpoint,
        )  # fmt: skip
        state.apply_ledger(written, 10 * checkpoint + 5)
    return state


def test_without_a_checkpoint_nothing_goes():
    assert bounds(a_state(checkpoint=None)) == Bounds(
        0, dict.fromkeys(bounds(a_state(checkpoint=1)).sequences, 0)
    )


def test_groups_of_steps_after_the_checkpoint_stay():
    found = bounds(a_state(checkpoint=4))

    assert found.floor == 40
    assert found.sequences[Log.ANNOTATED] == 40
    # StepPlanned(5) at 50 ends groups above the floor; the checkpoint's own event lies at 45.
    assert found.sequences[Log.LEDGER] == 44


def test_an_open_group_holds_back_all_that_came_after_it():
    found = bounds(a_state(checkpoint=8, open_requests=(17,)))

    assert found.floor == 16
    assert found.sequences[Log.LEDGER] == 19


def test_the_last_train_request_stays_whatever_has_ended():
    state = a_state(checkpoint=9)

    assert bounds(state).floor == 100
    assert bounds(state).sequences[Log.REQUESTS] == 99


@pytest.mark.parametrize(
    ("reader", "log"),
    [
        ("recorder", Log.REQUESTS), ("recorder", Log.GENERATED), ("policy", Log.VERIFIED),
        ("recorder", Log.VERIFIED), ("learner", Log.ANNOTATED), ("policy", Log.ANNOTATED),
        ("policy", Log.LEDGER), ("recorder", Log.LEDGER),
    ],
)  # fmt: skip
def test_a_log_keeps_what_its_slowest_reader_has_not_passed(reader: str, log: Log):
    state = a_state(checkpoint=9)
    advanced = ReaderAdvanced(writer_id=WRITER, at_us=AT_US, reader=reader, log=log, sequence=7)

    state.apply_ledger(advanced, 200)

    assert bounds(state).sequences[log] == 7


def test_a_reader_that_said_nothing_holds_everything():
    state = a_state(checkpoint=9)
    del state.readers["recorder", Log.GENERATED]

    assert bounds(state).sequences[Log.GENERATED] == 0


def test_weights_that_an_unfinished_evaluation_needs_stay_on_record():
    state = a_state(checkpoint=9)
    state.weights_sequences[3] = 31
    state.evaluations.requested("v000003-math-00000-0", 99)

    assert bounds(state).floor == 98
    assert bounds(state).sequences[Log.LEDGER] == 30


async def run_to(world: World, start: Start, windows: int) -> None:
    """A dispatcher that leaves when the world has trained so many windows."""
    async with playing(world), asyncio.timeout(LIMIT_S):
        task = asyncio.create_task(start.dispatch(world.bus))
        await until(lambda: world.windows >= windows)
        start.stop.set()
        await task


async def fold(world: World) -> tuple[State, Outbox]:
    state = State(max_attempts=3)
    followers = await catch_up(world.bus, state, Health("test"))
    await followers.close()
    return state, Outbox(world.bus, state, writer_id=WRITER)


async def clean(world: World, *, keep_fraction: float = 0.0) -> int:
    state, outbox = await fold(world)
    janitor = Janitor(world.bus, state, outbox, keep_fraction=keep_fraction)
    try:
        return await janitor.clean()
    finally:
        await janitor.close()


async def test_a_run_goes_on_after_a_purge_as_if_nothing_had_gone(tokenizer: Path):
    run = a_run(steps=24)
    world = a_world(
        run,
        script=lambda r: "fail" if r.draw == 30 and not r.attempt else "admit",
    )
    await world.begin()
    await run_to(world, Start(tokenizer, run, two_sources()), 10)
    await world.checkpoint()
    before, _ = await fold(world)
    drawn = [r.draw for r in await train_requests(world.bus)]

    assert await clean(world) > 0

    after, _ = await fold(world)
    assert (await world.bus.state(Log.REQUESTS)).first > 1
    assert (await world.bus.state(Log.ANNOTATED)).first > 1
    assert list(after.groups.open_groups()) == list(before.groups.open_groups())
    assert after.counters == before.counters
    assert after.settled_floor == before.settled_floor
    async with playing(world), asyncio.timeout(LIMIT_S):
        await Start(tokenizer, run, two_sources()).dispatch(world.bus)
    assert (await the_end(world.bus)).status == "finished"
    new = [r.draw for r in await train_requests(world.bus) if r.draw > max(drawn) and not r.attempt]
    assert new == list(range(max(drawn) + 1, max(new) + 1))


async def test_the_floor_is_on_record_and_plans_above_it_are_kept(tokenizer: Path):
    run = a_run(steps=24)
    world = a_world(run)
    await world.begin()
    await run_to(world, Start(tokenizer, run, two_sources()), 10)
    await world.checkpoint()

    await clean(world)

    ledger = await read_all(world.bus, Log.LEDGER)
    (purged,) = [e for e in ledger if isinstance(e, LogPurged)]
    kept = [r.group.request_seq for r in await train_requests(world.bus)]
    assert purged.floor >= min(kept) - 1
    assert any(isinstance(e, StepPlanned) for e in ledger)


async def test_nothing_goes_from_logs_that_are_not_half_full(tokenizer: Path):
    run = a_run(steps=4)
    world = a_world(run)
    await world.begin()
    async with playing(world), asyncio.timeout(LIMIT_S):
        await Start(tokenizer, run, two_sources()).dispatch(world.bus)
    await world.checkpoint()

    assert await clean(world, keep_fraction=0.5) == 0
    assert (await world.bus.state(Log.REQUESTS)).first == 1


async def test_a_request_whose_group_is_open_is_never_purged(tokenizer: Path):
    run = a_run(steps=40, groups_per_step=4)
    world = a_world(
        run,
        script=lambda r: "silence" if r.draw == 6 else "admit",
    )
    await world.begin()
    await run_to(world, Start(tokenizer, run, two_sources()), 10)
    await world.checkpoint()

    await clean(world)

    requests = [e for e in await read_all(world.bus, Log.REQUESTS) if isinstance(e, GroupRequested)]
    assert requests[0].draw == 6
