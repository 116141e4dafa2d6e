"""The dispatcher over a real NATS server: to the end, killed on the way, and fenced."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker import jetstream
from broker.errors import Replaced
from broker.jetbus import JetStreamBus
from broker.messages import EvaluationFinished
from broker.settings import NatsSettings
from broker.topology import Log
from tests.builders import a_request
from tests.dispatcher_world import (
    Start,
    World,
    a_run,
    a_tokenizer_folder,
    playing,
    read_all,
    the_end,
    train_requests,
    two_sources,
    until,
)

LIMIT_S = 120.0


@pytest.fixture
async def buses(nats_url: str) -> AsyncIterator[tuple[JetStreamBus, JetStreamBus]]:
    """Two connections to one new run: the world's and the dispatcher's."""
    settings = NatsSettings(url=nats_url, log_bytes=16 << 20)
    run = f"t{uuid.uuid4().hex[:12]}"
    first = await jetstream.connect(settings, run)
    second = await jetstream.connect(settings, run)
    await first.ensure_logs(settings)
    yield first, second
    await second.close()
    await first.delete_run()
    await first.close()


@pytest.mark.parametrize("deterministic", [False, True])
async def test_a_dispatcher_killed_on_the_way_takes_the_run_to_its_end(
    buses: tuple[JetStreamBus, JetStreamBus], tmp_path: Path, deterministic: bool
):
    changes = {"deterministic": True, "max_staleness": 0} if deterministic else {}
    run = a_run(steps=8, **changes)
    tokenizer = a_tokenizer_folder(tmp_path)
    world = World(
        buses[0], run, script=lambda r: "fail" if r.draw == 7 and not r.attempt else "admit"
    )
    await world.begin()

    async with playing(world), asyncio.timeout(LIMIT_S):
        for windows in (2, 5):
            start = Start(tokenizer, run, two_sources(eval_items=5))
            task = asyncio.create_task(start.dispatch(buses[1]))
            await until(lambda least=windows: world.windows >= least, LIMIT_S)
            task.cancel()
            await asyncio.wait({task})
        await Start(tokenizer, run, two_sources(eval_items=5)).dispatch(buses[1])

    assert (await the_end(world.bus)).status == "finished"
    requests = await train_requests(world.bus)
    draws = [r.draw for r in requests if not r.attempt]
    assert draws == list(range(1, len(draws) + 1))
    assert [(r.draw, r.attempt) for r in requests if r.attempt] == [(7, 1)]
    ledger = await read_all(world.bus, Log.LEDGER)
    evaluated = [e for e in ledger if isinstance(e, EvaluationFinished)]
    assert {(e.version, e.score) for e in evaluated} == {(0, 1.0), (8, 1.0)}


async def test_a_rival_on_another_connection_is_noticed(
    buses: tuple[JetStreamBus, JetStreamBus], tmp_path: Path
):
    run = a_run(steps=50)
    start = Start(a_tokenizer_folder(tmp_path), run, two_sources())
    world = World(buses[0], run, script=lambda r: "silence" if r.draw > 8 else "admit")
    await world.begin()

    async with playing(world), asyncio.timeout(LIMIT_S):
        task = asyncio.create_task(start.dispatch(buses[1]))
        await until(lambda: len(world.seen) >= 20)
        await world.bus.publish(a_request("00000099-0-0"))
        world.script = lambda r: "admit"
        await world._decide([r for r in await train_requests(world.bus) if r.draw in range(9, 13)])

        with pytest.raises(Replaced):
            await task
