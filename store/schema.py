"""The revision of the audit store: which one is in force, how to reach the wanted one."""

import threading
import time
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

import psycopg
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from broker.errors import BadConfiguration, TooLong, Unreachable
from store.database import connect, sqlalchemy_url, without_password
from store.models import metadata

LOCK_KEY = 7_203_495_114_200_031
"""Of the advisory lock that migrations hold; any number that nobody else uses."""
LOCK_LIMIT_S = 120
STATEMENT_LIMIT_S = 3600

_one_thread = threading.Lock()
"""Alembic keeps its environment in module globals; between processes the advisory lock does the same."""


@dataclass(frozen=True)
class SchemaState:
    found: str | None
    """Revision of the database; None when it is empty."""
    wanted: str
    relation: Literal["current", "behind", "ahead"]

    def __str__(self) -> str:
        match self.relation:
            case "current":
                return f"the store is at revision {self.found}, as wanted"
            case "behind":
                found = self.found or "none"
                return f"the store is at revision {found}, behind {self.wanted}: run `sluice db upgrade`"
            case "ahead":
                return (
                    f"the store is at revision {self.found}, which this program does not know "
                    f"(it wants {self.wanted}): use the newer program"
                )


def upgrade(url: str, *, wait_s: float = 20.0) -> None:
    """Bring the store to the newest revision; safe to call from many processes at once.

    Unreachable when no server answers, TooLong when another migration holds the lock too long,
    BadConfiguration when the store is ahead of this program.
    """
    connect(url, wait_s=wait_s).close()
    state = check(url)
    if state.relation == "ahead":
        raise BadConfiguration(str(state))
    if state.relation == "behind":
        _run(url, "upgrade", "head")


def downgrade(url: str, revision: str = "base") -> None:
    """Back to a revision. Data in what later revisions added are lost."""
    _run(url, "downgrade", revision)


def check(url: str) -> SchemaState:
    """Which revision is in force, against the one this program wants."""
    script = ScriptDirectory.from_config(_config(url))
    wanted = script.get_current_head()
    if wanted is None:
        raise BadConfiguration("migrations: no revision found in this installation")
    with connect(url) as connection:
        found = _revision(connection)
    known = {revision.revision for revision in script.walk_revisions()}
    if found == wanted:
        return SchemaState(found, wanted, "current")
    behind = found is None or found in known
    return SchemaState(found, wanted, "behind" if behind else "ahead")


def wait(url: str, *, limit_s: float) -> None:
    """Return once the wanted revision is in force; TooLong after `limit_s`, at once when ahead."""
    deadline = time.monotonic() + limit_s
    while True:
        state = check(url)
        if state.relation == "current":
            return
        if state.relation == "ahead":
            raise BadConfiguration(str(state))
        if time.monotonic() >= deadline:
            raise TooLong(f"{without_password(url)}: waited {limit_s:g} s; {state}")
        time.sleep(0.2)


def compare(url: str) -> list[object]:
    """What differs between the tables of the database and store.models; empty when they agree."""
    engine = create_engine(sqlalchemy_url(url), poolclass=NullPool)
    options = {"compare_type": True, "compare_server_default": True, "include_object": ours}
    with engine.connect() as connection:
        return list(
            compare_metadata(MigrationContext.configure(connection, opts=options), metadata)
        )


def ours(item: object, name: str | None, kind: str, reflected: bool, compare_to: object) -> bool:
    """Whether Alembic may compare an object: tables that only the database has are left alone."""
    return not (kind == "table" and reflected and compare_to is None)


def _revision(connection: psycopg.Connection) -> str | None:
    row = connection.execute("SELECT to_regclass('alembic_version') IS NOT NULL").fetchone()
    if row is None or not row[0]:
        return None
    found = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return None if found is None else str(found[0])


def _config(url: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(files("migrations")).replace("%", "%%"))
    config.attributes["url"] = sqlalchemy_url(url)
    return config


def _run(url: str, verb: Literal["upgrade", "downgrade"], revision: str) -> None:
    if not _one_thread.acquire(timeout=LOCK_LIMIT_S):
        raise TooLong(f"another thread's migration took longer than {LOCK_LIMIT_S} s")
    try:
        getattr(command, verb)(_config(url), revision)
    except OperationalError as error:
        if isinstance(error.orig, psycopg.errors.LockNotAvailable):
            raise TooLong(
                f"another migration of {without_password(url)} took longer than {LOCK_LIMIT_S} s"
            ) from error
        raise Unreachable(f"{without_password(url)}: {error.orig}") from error
    finally:
        _one_thread.release()
