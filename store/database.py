"""Connections to Postgres: with limits on every wait, in UTC, safe behind a transaction pooler."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import TupleRow

from broker.errors import BadConfiguration, Unreachable

Connection = psycopg.Connection[TupleRow]

CONNECT_TIMEOUT_S = 5
LOST = (psycopg.OperationalError, psycopg.InterfaceError)
"""The connection or the server is gone, or refuses for now."""


def plain_url(url: str) -> str:
    """postgresql://..., for psycopg and psql; postgresql+psycopg:// and postgres:// are understood."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in ("postgresql", "postgres", "postgresql+psycopg"):
        raise BadConfiguration(f"store.url {without_password(url)!r}: expected postgresql://...")
    try:
        conninfo_to_dict(f"postgresql://{rest}")
    except psycopg.ProgrammingError:
        # Its text would show the password.
        raise BadConfiguration("store.url: not a URL that Postgres understands") from None
    return f"postgresql://{rest}"


def sqlalchemy_url(url: str) -> str:
    return plain_url(url).replace("postgresql://", "postgresql+psycopg://", 1)


def with_database(url: str, name: str) -> str:
    """The same server, another database."""
    return urlunsplit(urlsplit(plain_url(url))._replace(path=f"/{name}"))


def without_password(url: str) -> str:
    """The URL as it may be shown."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "(unreadable)"
    user, at, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=user.partition(":")[0] + at + host))


def connect(url: str, *, wait_s: float = 0.0, application: str = "sluice") -> Connection:
    """A connection; tried again for `wait_s`, then Unreachable with the last reason."""
    address = plain_url(url)
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return psycopg.connect(
                address,
                connect_timeout=CONNECT_TIMEOUT_S,
                application_name=application,
                client_encoding="utf8",  # what COPY is given, whatever the environment says
                prepare_threshold=None,  # a pooler may give each transaction another server process
                keepalives_idle=10,
                keepalives_interval=5,
                keepalives_count=3,
                tcp_user_timeout=30_000,
            )
        except psycopg.OperationalError as error:
            if time.monotonic() >= deadline:
                reason = " ".join(str(error).split())
                raise Unreachable(
                    f"store.url {without_password(url)}: no Postgres within {wait_s:g} s: {reason}"
                ) from error
            time.sleep(min(0.3, max(0.0, deadline - time.monotonic())))


@contextmanager
def transaction(
    connection: Connection, *, limit_s: float = 60.0, lock_limit_s: float = 10.0
) -> Iterator[None]:
    """One transaction whose statements are cut off after `limit_s`, in UTC."""
    with connection.transaction():
        connection.execute(
            "SELECT set_config('statement_timeout', %s, true), set_config('lock_timeout', %s, true),"
            " set_config('timezone', 'UTC', true), set_config('client_min_messages', 'warning', true)",
            [f"{limit_s * 1000:.0f}", f"{lock_limit_s * 1000:.0f}"],
        )
        yield


@contextmanager
def reading(url: str, *, limit_s: float = 60.0, wait_s: float = 0.0) -> Iterator[Connection]:
    """A connection in one read-only snapshot: everything read in it belongs together.

    BadConfiguration when the tables are not there, or not yet as we know them.
    """
    with connect(url, wait_s=wait_s) as connection:
        connection.read_only = True
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        try:
            with transaction(connection, limit_s=limit_s):
                yield connection
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as error:
            raise BadConfiguration(
                f"store.url {without_password(url)}: {str(error).splitlines()[0]}; "
                "`sluice db upgrade` makes what is missing"
            ) from error
