"""Servers of a benchmark's own, which are gone when it ends."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

import store.embedded
from broker import embedded
from broker.settings import NatsSettings
from store.database import with_database
from store.schema import upgrade


@contextmanager
def nats(settings: NatsSettings) -> Iterator[str]:
    """URL of a NATS server with these settings."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as directory:
        server = embedded.start(Path(directory), settings)
        try:
            yield server.url
        finally:
            server.stop()


@contextmanager
def postgres() -> Iterator[str]:
    """URL of a Postgres server as `sluice run` starts it, empty."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as directory:
        server = store.embedded.start(Path(directory))
        try:
            yield server.url
        finally:
            server.stop()


def fresh_database(server_url: str, name: str) -> str:
    """URL of a new database with our tables."""
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())
        connection.execute(f"CREATE DATABASE {name}".encode())
    url = with_database(server_url, name)
    upgrade(url)
    return url
