"""Services that tests share. A missing one skips locally and fails in CI."""

import os
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import psycopg
import pytest

import store.embedded
from broker import embedded
from broker.errors import BadConfiguration, Unreachable
from broker.settings import NatsSettings
from store.database import with_database
from store.schema import upgrade

# How long an example takes says how busy the machine is; no unit test is timed.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


@pytest.fixture(scope="session")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A NATS server of this test session's own, with user and password in the URL."""
    try:
        embedded.find_binary()
    except BadConfiguration as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    # A power loss cannot happen to a test: no wait for the disk.
    settings = NatsSettings(sync_interval="2m")
    server = embedded.start(tmp_path_factory.mktemp("nats"), settings)
    try:
        yield server.url
    finally:
        server.stop()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """A Postgres server of this test session's own, with a migrated database `template_sluice`."""
    # Not under pytest's folder: every pytest session closes that to all users but its own, and as root
    # the server is another user.
    with tempfile.TemporaryDirectory(prefix="sluice-postgres-") as directory:
        try:
            server = store.embedded.start(Path(directory))
        except Unreachable as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(str(error))
        try:
            with psycopg.connect(server.url, autocommit=True) as connection:
                for name in ("fsync", "full_page_writes", "synchronous_commit"):
                    # A power loss cannot happen to a test: no wait for the disk.
                    connection.execute(f"ALTER SYSTEM SET {name} = off".encode())
                connection.execute("SELECT pg_reload_conf()")
                connection.execute("CREATE DATABASE template_sluice")
            upgrade(with_database(server.url, "template_sluice"))
            yield server.url
        finally:
            server.stop()


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """A migrated, empty database of this test's own."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template_sluice".encode())
        yield with_database(postgres_server, name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture
def empty_postgres_url(postgres_server: str) -> Iterator[str]:
    """A database of this test's own without any table."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        yield with_database(postgres_server, name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
