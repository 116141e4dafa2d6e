"""The recorder against a real Postgres: nothing lost, nothing double, whatever happens on the way."""

import asyncio
import random
import uuid
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker import jetstream
from broker.bus import Stored
from broker.errors import TooLong, Unreachable
from broker.messages import ReaderAdvanced
from broker.settings import NatsSettings
from broker.telemetry import Health
from broker.topology import Log, kind_subjects
from store import recorder
from store.audit import verify
from store.database import connect
from store.settings import StoreSettings
from tests.store_recording import SETTINGS, a_bus, record, recorded, wait_until
from tests.store_tables import LOGS, close_ends, tables, write, write_run
from tests.store_world import (
    RUN,
    World,
    a_small_run,
    answer,
    ask,
    end,
    started,
    undecided,
)


async def test_a_run_is_recorded_to_its_end_and_the_recorder_leaves(postgres_url: str):
    bus, world = a_bus(), a_small_run()
    await world.publish(bus)

    await record(bus, postgres_url)

    with connect(postgres_url) as connection:
        found = tables(connection, RUN)
    states = {row["group_id"]: (row["state"], row["drop_reason"]) for row in found["prompt_group"]}
    assert states["00000004-0-0"] == ("trained", None)
    assert states["00000006-0-0"] == ("dropped", "filtered:equal")
    assert states["00000009-0-0"] == ("failed", "engine: out of memory")
    assert states["00000011-0-0"] == ("dropped", "stale")
    assert states["00000012-0-0"] == ("dropped", "run_ended")
    assert states["v000000-math-00000-0"] == ("measured", None)
    (run,) = found["run"]
    assert (run["status"], run["reason"]) == ("finished", "all steps taken")
    assert run["ended_at"] is not None
    (state,) = found["supervision_state"]
    assert (state["labeled"], state["visits"], state["solve_rate"]) == (True, 2, 0.25)


async def test_a_run_on_a_real_broker_is_recorded_and_agrees_with_its_logs(
    postgres_url: str, nats_url: str
):
    nats = NatsSettings(url=nats_url, log_bytes=16 << 20)
    run_id = f"s{uuid.uuid4().hex[:10]}"
    bus = await jetstream.connect(nats, run_id)
    try:
        await bus.ensure_logs(nats)
        await a_small_run().publish(bus)

        await record(bus, postgres_url)

        proofs = {proof.name: proof for proof in await verify(postgres_url, run_id, bus)}
        assert [proof.name for proof in proofs.values() if not proof.ok] == []
        assert proofs["agrees_with_logs"].detail.startswith("REQUESTS: 12 messages, to 12")
    finally:
        await bus.delete_run()
        await bus.close()


async def test_two_recorders_at_once_do_no_harm(postgres_url: str):
    bus, world = a_bus(), a_small_run()
    await world.publish(bus)

    await asyncio.gather(*(record(bus, postgres_url) for _ in range(2)))

    with connect(postgres_url) as connection:
        got = tables(connection, RUN)
        write_run(connection, "straight", world)
        assert got == tables(connection, "straight")


async def test_how_far_it_is_goes_to_the_ledger_and_is_no_news_of_its_own(postgres_url: str):
    bus, world = a_bus(), a_small_run()
    await world.publish(bus)

    await record(bus, postgres_url)

    told = {}
    cursor = await bus.cursor(Log.LEDGER, 0, [kind_subjects(RUN, ReaderAdvanced.KIND)])
    for stored in await cursor.read(100, 0.1):
        event = stored.event()
        if isinstance(event, ReaderAdvanced) and event.reader == "recorder":
            told[event.log] = event.sequence
    assert told == {str(log): len(world.logs[log]) for log in LOGS}
    await record(bus, postgres_url)
    assert (await bus.state(Log.LEDGER)).last == len(world.logs[Log.LEDGER]) + len(LOGS)


async def test_a_recorder_that_stops_and_starts_again_goes_on_where_it_was(postgres_url: str):
    bus, world = a_bus(), a_small_run()
    await world.publish(bus, [Log.LEDGER, Log.ANNOTATED])
    await record(bus, postgres_url, until=lambda: recorded(postgres_url, Log.ANNOTATED) > 0)

    await world.publish(bus, [Log.REQUESTS, Log.GENERATED, Log.VERIFIED])
    await record(bus, postgres_url)

    with connect(postgres_url) as connection:
        got = tables(connection, RUN)
        write_run(connection, "straight", world)
        wanted = tables(connection, "straight")
    assert got == wanted


@pytest.fixture
def messages() -> list[Stored]:
    world = a_small_run()
    return [stored for log in LOGS for stored in world.stored(log)]


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 2**32))
def test_any_interleaving_of_logs_batches_and_redelivery_gives_equal_tables(
    postgres_url: str, messages: list[Stored], seed: int
):
    rng = random.Random(seed)
    run_id = f"shuffled-{seed}"
    queues = {log: [m for m in messages if m.log is log] for log in LOGS}
    with connect(postgres_url) as connection:
        write_run(connection, "straight", a_small_run())

        while any(queues.values()):
            batch = []
            for _ in range(rng.randint(1, 12)):
                log = rng.choice([log for log, queue in queues.items() if queue] or [Log.LEDGER])
                batch += queues[log][:1]
                del queues[log][:1]
            write(connection, run_id, batch)
            if rng.random() < 0.5:  # the commit was not seen to succeed, or an older copy came late
                write(
                    connection,
                    run_id,
                    rng.sample(messages, 5) if not any(queues.values()) else batch,
                )
        close_ends(connection, run_id)

        assert tables(connection, run_id) == tables(connection, "straight")


async def test_postgres_may_be_away_for_a_while_once_the_recorder_has_begun(
    postgres_url: str, postgres_server: str
):
    bus, world = a_bus(), a_small_run()
    await world.publish(bus, [Log.REQUESTS])
    health, stop = Health("recorder"), asyncio.Event()
    task = asyncio.create_task(
        recorder.run(bus, url=postgres_url, settings=SETTINGS, health=health, stop=stop)
    )
    name = postgres_url.partition("?")[0].rpartition("/")[2]
    async with asyncio.timeout(30):
        await wait_until(lambda: recorded(postgres_url, Log.REQUESTS) > 0)
        await asyncio.to_thread(set_away, postgres_server, name, True)

        await world.publish(bus, [log for log in LOGS if log is not Log.REQUESTS])
        await wait_until(lambda: "Postgres" in str(health.status()["waits"]))
        assert not task.done()
        await asyncio.to_thread(set_away, postgres_server, name, False)
        await task

    with connect(postgres_url) as connection:
        (run,) = tables(connection, RUN)["run"]
    assert run["status"] == "finished"


def set_away(server: str, name: str, away: bool) -> None:
    with connect(server) as connection:
        connection.autocommit = True
        allowed = "false" if away else "true"
        connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS {allowed}".encode())
        if away:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
            )


async def test_a_recorder_that_cannot_begin_says_so_within_its_limit(empty_postgres_url: str):
    health, stop = Health("recorder"), asyncio.Event()
    short = StoreSettings(connect_wait_s=0.3)
    nowhere = "postgresql://nobody@127.0.0.1:1/none"

    with pytest.raises(Unreachable, match=r"127.0.0.1:1/none: no Postgres within 0.3 s"):
        await recorder.run(a_bus(), url=nowhere, settings=short, health=health, stop=stop)
    with pytest.raises(TooLong, match=r"behind \d{4}"):
        await recorder.run(
            a_bus(), url=empty_postgres_url, settings=short, health=health, stop=stop
        )


async def test_output_that_came_after_the_end_counts_for_nothing_whenever_it_is_read(
    postgres_url: str,
):
    world = World()
    world.say(started())
    late, drafted = ask(world, 1), ask(world, 2)
    answer(world, drafted, version=0)
    end(world, late, drafted)
    answer(world, late, version=0)
    world.say(undecided(late, "failed", "too late", 2))
    world.say(undecided(drafted, "dropped", "too late", 1))
    in_order = [stored for log in LOGS for stored in world.stored(log)]

    with connect(postgres_url) as connection:
        write(connection, "late first", in_order)
        close_ends(connection, "late first")
        found = tables(connection, "late first")
    bus = a_bus()
    await world.publish(bus, [Log.LEDGER])
    await record(bus, postgres_url, until=lambda: recorded(postgres_url, Log.LEDGER) > 0)
    await world.publish(bus, [log for log in LOGS if log is not Log.LEDGER])
    await record(bus, postgres_url)

    with connect(postgres_url) as connection:
        assert tables(connection, RUN) == found
    assert [(row["drop_reason"], row["ends"]) for row in found["prompt_group"]] == [
        ("run_ended", 32)
    ] * 2
    assert {row["group_id"] for row in found["generation"]} == {"00000002-0-0"}
    assert found["annotation"] == []


async def test_a_resumed_run_is_recorded_on_and_ends_again(postgres_url: str):
    bus, world = a_bus(), a_small_run()
    await world.publish(bus)
    await record(bus, postgres_url)

    again = World()
    again.say(started(resumed=True))
    await bus.publish(again.logs[Log.LEDGER][0])
    more = ask(World(), 13)
    await bus.publish(more)
    task = asyncio.create_task(record(bus, postgres_url))
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(task), 0.5)
    assert not task.done()
    with connect(postgres_url) as connection:
        (run,) = tables(connection, RUN)["run"]
    assert (run["status"], run["ended_at"]) == ("running", None)
    last = World()
    end(last)
    lasts = {str(log): (await bus.state(log)).last for log in LOGS}
    ended = last.logs[Log.LEDGER][-1].model_copy(update={"last_sequences": lasts})
    await bus.publish(ended)
    await task

    with connect(postgres_url) as connection:
        found = tables(connection, RUN)
    assert found["run"][0]["status"] == "finished"
    assert len(found["run_end"]) == 2
    assert found["prompt_group"][9]["group_id"] == "00000013-0-0"
    assert found["prompt_group"][9]["drop_reason"] == "run_ended"
