"""An empty database and the logs are enough; where the logs are not, it is said what is missing."""

import json
import uuid
from collections.abc import AsyncIterator

import psycopg
import pytest

from broker import jetstream
from broker.errors import BadConfiguration
from broker.jetbus import JetStreamBus
from broker.memory import MemoryBus
from broker.messages import LogPurged
from broker.settings import NatsSettings
from broker.telemetry import Health
from broker.topology import Log
from store.audit import verify
from store.database import connect, transaction
from store.missing import missing
from store.rebuild import Rebuilt, rebuild
from tests.store_events import COMMON, RUN
from tests.store_recording import SETTINGS, a_bus, record
from tests.store_tables import tables
from tests.store_world import World, a_small_run

PURGED = 6
"""Requests up to this one have gone from the logs in the tests below."""
SHARED = ("dataset", "sample", "rendered_prompt")
"""Tables that all runs share."""


async def fill(bus: MemoryBus | JetStreamBus, url: str) -> Rebuilt:
    return await rebuild(bus, url, settings=SETTINGS, health=Health("rebuild"))


def shared(url: str) -> dict[str, list[tuple]]:
    with connect(url) as connection:
        return {
            name: connection.execute(f"SELECT * FROM {name} ORDER BY 1".encode()).fetchall()
            for name in SHARED
        }


def of_run(url: str, run_id: str = RUN) -> dict[str, list[dict[str, object]]]:
    with connect(url) as connection:
        return tables(connection, run_id)


@pytest.fixture
def second_url(postgres_server: str, postgres_url: str) -> str:
    """Another migrated, empty database."""
    from store.database import with_database

    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template_sluice".encode())
    return with_database(postgres_server, name)


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[JetStreamBus]:
    """The empty logs of a run of this test's own, on a real broker."""
    nats = NatsSettings(url=nats_url, log_bytes=16 << 20)
    bus = await jetstream.connect(nats, f"s{uuid.uuid4().hex[:10]}")
    try:
        await bus.ensure_logs(nats)
        yield bus
    finally:
        await bus.delete_run()
        await bus.close()


async def test_every_table_equals_the_one_before(
    bus: JetStreamBus, postgres_url: str, second_url: str
):
    await a_small_run().publish(bus)
    await record(bus, postgres_url)
    ends = {log: (await bus.state(log)).last for log in Log}

    done = await fill(bus, second_url)

    assert not done.missing
    assert done.missing.lines() == []
    assert of_run(second_url, bus.run) == of_run(postgres_url, bus.run)
    assert shared(second_url) == shared(postgres_url)
    assert all(of_run(second_url, bus.run)[name] for name in ("generation", "supervision_state"))
    assert [p.name for p in await verify(second_url, bus.run, bus) if not p.ok] == []
    assert {log: (await bus.state(log)).last for log in Log} == ends


async def test_a_live_run_is_rebuilt_as_far_as_it_is(postgres_url: str, second_url: str):
    bus, world = a_bus(), a_small_run(ended=False)
    await world.publish(bus)
    told = {log: len(world.logs[log]) for log in Log}

    done = await fill(bus, second_url)

    assert done.messages == sum(told.values())
    assert of_run(second_url)["run"][0]["status"] == "running"
    # And a recorder goes on from there.
    await a_small_run_ends(bus, world)
    await record(bus, second_url)
    await record(bus, postgres_url)
    assert of_run(second_url) == of_run(postgres_url)


async def a_small_run_ends(bus: MemoryBus, world: World) -> None:
    whole = a_small_run()
    for log in Log:
        for event in whole.logs[log][len(world.logs[log]) :]:
            await bus.publish(event)


async def purge(bus: MemoryBus | JetStreamBus, world: World) -> None:
    """As the janitor does: the floor on record, then every log up to it."""
    await bus.publish(LogPurged(**COMMON, floor=PURGED))
    for log in (Log.REQUESTS, Log.GENERATED, Log.VERIFIED, Log.ANNOTATED):
        sequences = [
            stored.sequence
            for stored in world.stored(log)
            if int(stored.headers["Sluice-Request-Seq"]) <= PURGED
        ]
        await bus.purge(log, max(sequences))


async def test_what_was_purged_is_named_and_not_made_up(
    bus: JetStreamBus, postgres_url: str, second_url: str
):
    world = a_small_run()
    await world.publish(bus)
    await record(bus, postgres_url)
    await purge(bus, world)
    await bus.purge(Log.LEDGER, 8, keep_last_per_subject=True)

    done = await fill(bus, second_url)

    assert {gap.log for gap in done.missing.gaps} == set(Log) - {Log.DEAD}
    assert str(done.missing.gaps[-1]) == "VERIFIED 1-6"
    assert done.missing.groups["request"] == [(1, PURGED)]
    assert done.missing.groups["answers"] == [(1, PURGED)]
    assert done.missing.steps["plan"] == [(1, 1)]
    assert "groups without request: requests 1-6 (6 in all)" in done.missing.lines()
    assert json.loads(json.dumps(done.missing.tree()))["groups_without"]["end"]
    # What is there is as it was.
    before, after = of_run(postgres_url, bus.run), of_run(second_url, bus.run)
    for table in ("generation", "verdict", "annotation"):
        assert after[table]
        assert all(row in before[table] for row in after[table])
    open_at_the_end = [row for row in after["prompt_group"] if row["drop_reason"] == "run_ended"]
    assert [row["group_id"] for row in open_at_the_end] == ["00000012-0-0"]
    # And whoever asks for proofs is told.
    proofs = {proof.name: proof for proof in await verify(second_url, bus.run, bus)}
    assert not proofs["one_end"].ok
    assert "purged before recorded: ANNOTATED 1-" in proofs["one_end"].detail


async def test_a_log_of_which_nothing_is_left_is_missing_whole(second_url: str):
    bus, world = a_bus(), a_small_run()
    await world.publish(bus)
    await bus.publish(LogPurged(**COMMON, floor=11))
    last = (await bus.state(Log.VERIFIED)).last
    await bus.purge(Log.VERIFIED, last)

    done = await fill(bus, second_url)

    assert [str(gap) for gap in done.missing.gaps] == [f"VERIFIED 1-{last}"]
    assert list(done.missing.groups) == ["verdicts", "end"]
    # Of verdicts, those are left that LEDGER revised.
    assert all(row["event_id"] > 0 for row in of_run(second_url)["verdict"])
    assert of_run(second_url)["run"][0]["status"] == "finished"


async def test_a_recorder_with_a_database_younger_than_the_run_says_so(
    postgres_url: str, second_url: str
):
    bus, world = a_bus(), a_small_run()
    await world.publish(bus)
    await record(bus, postgres_url)
    await purge(bus, world)

    await record(bus, second_url)

    with connect(second_url) as connection, transaction(connection):
        lacking = missing(connection, RUN)
    assert lacking.groups["end"][0][0] == 1
    incidents = [event for event in await ledger(bus) if event.KIND == "incident"]
    told = [event.detail for event in incidents if event.kind == "purged_unrecorded"]
    assert sorted(told) == sorted(f"{gap} purged before recorded" for gap in lacking.gaps)


async def ledger(bus: MemoryBus) -> list:
    cursor = await bus.cursor(Log.LEDGER, 0)
    return [stored.event() for stored in await cursor.read(1000, 0.1)]


async def test_a_store_that_knows_the_run_is_left_alone(postgres_url: str):
    bus = a_bus()
    await a_small_run().publish(bus)
    await record(bus, postgres_url)
    before = of_run(postgres_url)

    with pytest.raises(BadConfiguration, match="already holds rows of it"):
        await fill(bus, postgres_url)

    assert of_run(postgres_url) == before
