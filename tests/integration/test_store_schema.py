"""Migrations on a real server: from nothing, back, together, and told apart from other revisions."""

import asyncio
import sys

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from broker.errors import BadConfiguration, TooLong, Unreachable
from store import schema, summary
from store.database import connect, sqlalchemy_url


def test_an_empty_database_becomes_what_the_models_declare(empty_postgres_url: str):
    assert schema.check(empty_postgres_url).relation == "behind"

    schema.upgrade(empty_postgres_url)

    assert schema.check(empty_postgres_url).relation == "current"
    assert schema.compare(empty_postgres_url) == []


def test_a_question_to_a_database_without_tables_is_refused_with_what_mends_it(
    empty_postgres_url: str,
):
    with pytest.raises(
        BadConfiguration, match=r"\"learner_step\" does not exist; `sluice db upgrade`"
    ):
        summary.summary(empty_postgres_url, "r1")


def test_a_difference_between_tables_and_models_is_seen(postgres_url: str):
    engine = create_engine(sqlalchemy_url(postgres_url), poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE sample DROP COLUMN target"))
        connection.execute(text("ALTER TABLE weights ALTER COLUMN bytes TYPE integer"))
        connection.execute(text("DROP INDEX ix_prompt_group_sample"))
        connection.execute(text("CREATE TABLE of_somebody_else (a integer)"))

    found = str(schema.compare(postgres_url))

    assert "target" in found
    assert "bytes" in found
    assert "ix_prompt_group_sample" in found
    assert "of_somebody_else" not in found


def test_downgrade_leaves_nothing_and_upgrade_makes_it_again(postgres_url: str):
    schema.downgrade(postgres_url)
    with connect(postgres_url) as connection:
        left = connection.execute(
            "SELECT c.relname FROM pg_class AS c WHERE c.relnamespace = 'public'::regnamespace "
            "AND c.relname NOT LIKE 'alembic%' UNION SELECT typname FROM pg_type "
            "WHERE typnamespace = 'public'::regnamespace AND typname NOT LIKE '%alembic%'"
        ).fetchall()

    schema.upgrade(postgres_url)

    assert left == []
    assert schema.compare(postgres_url) == []


async def test_three_processes_and_three_threads_may_upgrade_at_once(empty_postgres_url: str):
    program = f"from store.schema import upgrade; upgrade({empty_postgres_url!r})"
    processes = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", program) for _ in range(3)
    ]
    threads = [asyncio.to_thread(schema.upgrade, empty_postgres_url) for _ in range(3)]

    async with asyncio.timeout(60):
        await asyncio.gather(*threads)
        codes = [await process.wait() for process in processes]

    assert codes == [0, 0, 0]
    assert schema.check(empty_postgres_url).relation == "current"
    assert schema.compare(empty_postgres_url) == []


def test_a_newer_revision_is_told_from_an_older_one_and_left_alone(postgres_url: str):
    with connect(postgres_url) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'f00d'")

    state = schema.check(postgres_url)

    assert (state.relation, state.found) == ("ahead", "f00d")
    with pytest.raises(BadConfiguration, match="f00d, which this program does not know"):
        schema.upgrade(postgres_url)
    with pytest.raises(BadConfiguration, match="use the newer program"):
        schema.wait(postgres_url, limit_s=5)


def test_waiting_for_the_revision_ends_at_its_limit(empty_postgres_url: str):
    with pytest.raises(TooLong, match=r"waited 0.3 s; the store is at revision none, behind \d{4}"):
        schema.wait(empty_postgres_url, limit_s=0.3)


def test_no_server_is_told_within_the_limit_and_without_the_password():
    with pytest.raises(
        Unreachable, match=r"postgresql://u@127.0.0.1:1/x: no Postgres within 0.2 s"
    ) as caught:
        schema.upgrade("postgresql://u:secret@127.0.0.1:1/x", wait_s=0.2)

    assert "secret" not in str(caught.value)


def test_supervision_events_can_only_be_added(postgres_url: str):
    with connect(postgres_url) as connection:
        connection.execute(
            "INSERT INTO supervision_event (event_id, run_id, sample_key, recorded_at, method, lifetime, "
            "field, evidence, actor) VALUES (1, 'r', 's', now(), 'm', 'run', 'visits', '{}', 'a')"
        )
        connection.commit()

        for statement in (
            b"UPDATE supervision_event SET actor = 'b'",
            b"DELETE FROM supervision_event",
            b"TRUNCATE supervision_event",
        ):
            with pytest.raises(psycopg.errors.RestrictViolation, match="append-only"):
                connection.execute(statement)
            connection.rollback()


def test_a_group_never_goes_back(postgres_url: str):
    with connect(postgres_url) as connection:
        connection.execute(
            "INSERT INTO prompt_group (run_id, group_id, state, ends) VALUES ('r', 'g', 'verified', 0)"
        )

        with pytest.raises(psycopg.errors.RestrictViolation, match="cannot go back to requested"):
            connection.execute("UPDATE prompt_group SET state = 'requested'")


def test_the_reader_role_reads_and_does_not_write(postgres_url: str):
    with connect(postgres_url) as connection:
        connection.execute("SET ROLE sluice_reader")
        assert connection.execute("SELECT count(*) FROM sample_history").fetchone() == (0,)

        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("DELETE FROM incident")
