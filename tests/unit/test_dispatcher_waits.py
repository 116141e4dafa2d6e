"""How long a run may stand still, with space in its logs and without."""

import asyncio
import time
from pathlib import Path

import pytest

from broker.memory_state import MemoryServer
from broker.topology import Log
from tests.builders import a_generated, a_key, a_request
from tests.dispatcher_world import (
    Start,
    a_run,
    a_tokenizer_folder,
    a_world,
    playing,
    the_end,
    two_sources,
)
from workers.dispatcher import janitor, waits, worker
from workers.dispatcher.waits import Stillness

LIMIT_S = 30.0


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_tokenizer_folder(tmp_path_factory.mktemp("model"))


async def test_a_log_that_stays_full_does_not_keep_a_run_for_ever(
    tokenizer: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(janitor, "INTERVAL_S", 0.05)
    monkeypatch.setattr(worker, "IDLE_LIMIT_S", 0.2)
    monkeypatch.setattr(waits, "FULL_LIMIT_S", 0.8)
    run = a_run(groups_per_step=4, pace=2, drain_wait_s=0.1)
    # Full of what its readers have not told to have read, but whoever has a small message has room.
    world = a_world(run, MemoryServer(log_bytes=400_000), script=lambda request: "silence")
    await world.begin()
    state = await world.bus.state(Log.GENERATED)
    number = 1000
    while state.bytes <= 0.9 * state.limit_bytes:
        key = a_key(f"{number:08d}-0-0", request_seq=number)
        await world.bus.publish(a_generated(a_request(group=key)))
        number, state = number + 1, await world.bus.state(Log.GENERATED)

    async with playing(world), asyncio.timeout(LIMIT_S):
        began = time.monotonic()
        await Start(tokenizer, run, two_sources()).dispatch(world.bus)

    assert (await the_end(world.bus)).status == "no_progress"
    assert time.monotonic() - began > 0.8


def test_the_time_without_space_does_not_count_against_a_run_that_has_space_again():
    still = Stillness.since(0.0, moves=1)

    found: list[float] = []
    for now, moves, full in (
        (50.0, 1, False), (7000.0, 1, True), (7100.0, 1, False), (7200.0, 2, False),
        (80_000.0, 2, True), (100_000.0, 2, True),
    ):  # fmt: skip
        still.look(now, moves, full=full)
        found.append(still.limit_s(3600.0) - still.idle_s)

    # What is left: of an hour, counted from when there was space, and of a day in all.
    assert found == [3550.0, 3600.0, 3500.0, 3600.0, 3600.0, 86_400.0 - 92_800.0]
