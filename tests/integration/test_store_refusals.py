"""What Postgres will not take: it is marked, or goes to DEAD alone; the rest is recorded."""

from datetime import UTC, datetime

from broker.topology import Log
from store import writer
from store.database import connect
from store.row import Row
from store.rows import rows_of
from tests.builders import a_generation, a_verdict, a_verified
from tests.store_recording import a_bus, record
from tests.store_tables import tables
from tests.store_world import (
    RUN,
    World,
    a_generated,
    ask,
    end,
    started,
    supervision,
)


async def test_a_refused_row_goes_to_dead_alone_and_the_rest_is_recorded(postgres_url: str):
    bus, world = a_bus(), World()
    world.say(started())
    request = ask(world, 1)
    good, garbage = a_generation(0), a_generation(1, seed=2**63)
    world.say(a_generated(request, generations=(good, garbage)))
    world.say(a_verified(request))
    end(world, request)
    await world.publish(bus)

    await record(bus, postgres_url)

    with connect(postgres_url) as connection:
        found = tables(connection, RUN)
    assert [row["generation_index"] for row in found["generation"]] == [0]
    assert len(found["verdict"]) == 2
    dead = await bus.last(Log.DEAD, ">")
    assert dead is not None
    assert "generation" in str(dict(dead.headers))
    with connect(postgres_url) as connection:
        assert writer.positions(connection, RUN)[Log.GENERATED] == writer.Position(1, 1)


def test_one_bad_row_among_many_is_found_wherever_it_is(postgres_url: str):
    world, rows = World(), []
    for place in range(1, 40):
        seed = 2**63 if place in (7, 31) else 1
        answers = (a_generation(0, seed=seed), a_generation(1))
        rows += rows_of(RUN, place, a_generated(ask(world, place), generations=answers))

    with connect(postgres_url) as connection:
        bad = writer.find_bad(connection, rows)
        left = connection.execute("SELECT count(*) FROM generation").fetchone()

    assert [rows[i].values["group_id"] for i in bad] == ["00000007-0-0", "00000031-0-0"]
    assert all("out of range" in reason for reason in bad.values())
    assert left == (0,)


def test_postgres_reads_each_kind_of_value_as_it_was_meant(postgres_url: str):
    at_us = 1_700_000_000_123_457
    run = {
        "run_id": RUN, "name": "ü", "config": {"a": [1, None]}, "seed": 18_446_744_073_709_551_615,
        "started_at": at_us, "status": "running", "reason": "", "last_event_id": 2**62,
    }  # fmt: skip
    sample = {
        "sample_key": "d:1:1", "dataset": "d", "dataset_version": "1", "item_index": 3,
        "domain": "math", "difficulty": -0.1, "prompt": "", "prompt_is_chat": True,
        "prompt_sha256": b"\x00\xff", "labeled": False, "verifier": {}, "options": {},
    }  # fmt: skip
    others = [run | {"run_id": f"{RUN}-{seed}", "seed": seed} for seed in (0, -30_000, 10_000)]
    rows = [Row("run", values) for values in (run, *others)]

    with connect(postgres_url) as connection:
        writer.put(connection, writer.encoded([*rows, Row("sample", sample)]))
        got = connection.execute(
            "SELECT name, config, seed, started_at, ended_at, status, last_event_id FROM run "
            "WHERE run_id = %s", [RUN],
        ).fetchone()  # fmt: skip
        seeds = connection.execute("SELECT seed FROM run WHERE run_id <> %s ORDER BY 1", [RUN])
        kept = connection.execute(
            "SELECT item_index, difficulty, prompt_is_chat, prompt_sha256, target, labeled, cleaned "
            "FROM sample"
        ).fetchone()
        numbers = [int(seed) for (seed,) in seeds]

    at = datetime(2023, 11, 14, 22, 13, 20, 123457, UTC)
    assert got == ("ü", {"a": [1, None]}, run["seed"], at, None, "running", 2**62)
    assert numbers == [-30_000, 0, 10_000]
    assert kept == (3, -0.1, True, b"\x00\xff", None, False, False)


async def test_an_undecodable_message_is_buried_and_counted(postgres_url: str):
    bus, world = a_bus(), World()
    world.say(started())
    world.say(supervision("math:1:1", "visits", None, "many"))
    end(world)
    await world.publish(bus)

    await record(bus, postgres_url)

    with connect(postgres_url) as connection:
        assert tables(connection, RUN)["supervision_event"] == []
        assert writer.positions(connection, RUN)[Log.LEDGER].dead_lettered == 1


async def test_nul_and_lone_surrogates_are_stored_marked_and_flagged(postgres_url: str):
    bus, world = a_bus(), World()
    world.say(started())
    request = ask(world, 1)
    hostile = a_generation(0, text="5{\x00x")
    verdict = a_verdict(0, extracted="\x00", components={"k\x00": 1.0}, detail="hi \ud83d")
    world.say(a_generated(request, generations=(hostile, a_generation(1))))
    world.say(a_verified(request, verdicts=(verdict, a_verdict(1))))
    end(world, request)
    await world.publish(bus)

    await record(bus, postgres_url)

    with connect(postgres_url) as connection:
        found = tables(connection, RUN)
    assert [(row["text"], row["cleaned"]) for row in found["generation"]] == [
        ("5{␀x", True),
        ("2", False),
    ]
    assert found["verdict"][0]["components"] == {"k␀": 1}
    assert [row["cleaned"] for row in found["verdict"]] == [True, False]
