"""Rows into Postgres: a batch and the cursors it stands for are one transaction, idempotent, in key order.

Answers, verdicts and annotations are nearly always new and are copied straight into their tables; a batch
that turns out to hold a known row is staged and merged instead.
"""

import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

import psycopg

from broker.errors import SluiceError
from store.database import Connection, transaction
from store.effects import apply_effects
from store.encode import COLUMNS, copied
from store.gaps import Gap
from store.merge import Tables, gather, upsert
from store.row import Row

STRAIGHT = frozenset(
    ("generation", "verdict", "group_decision", "annotation", "batch_member", "evaluation_item")
)
CONTENTION = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)
CONTENTION_TRIES = 10
REFUSALS = ("21", "22", "23", "54")
"""Classes of SQLSTATE that blame the data: cardinality, data, integrity, limits."""


class BadRow(SluiceError):
    """Postgres will never take this row; the message says why."""


@dataclass(frozen=True)
class Encoded:
    """Rows that are ready to be written."""

    tables: Tables
    blocks: Mapping[str, bytes]
    """Table to what COPY reads, in the order of writing."""


@dataclass(frozen=True)
class Position:
    """How far a log has been read, and how many of its messages went to DEAD on the way."""

    sequence: int = 0
    dead_lettered: int = 0


def positions(connection: Connection, run_id: str) -> dict[str, Position]:
    """Where the recorder of a run stands, by log."""
    with transaction(connection):
        found = connection.execute(
            "SELECT log, sequence, dead_lettered FROM recorder_cursor WHERE run_id = %s", [run_id]
        ).fetchall()
    return {log: Position(sequence, dead) for log, sequence, dead in found}


def encoded(rows: Iterable[Row]) -> Encoded:
    """Merged rows in COPY's form. BadRow when a value is not of its column's kind."""
    tables, blocks = gather(rows), {}
    for table, found in tables.items():
        with _bad_rows(table):
            blocks[table] = copied(COLUMNS[table], found)
    return Encoded(tables, blocks)


def write(
    connection: Connection,
    run_id: str,
    rows: Encoded,
    moved: Mapping[str, Position],
    *,
    now: datetime,
    gaps: Sequence[Gap] = (),
    floor: int = 0,
) -> None:
    """Commit rows and cursors together. BadRow: nothing was written; see `find_bad`.

    gaps: what was purged unread on the way; floor: the last request that the purged may belong to.
    """
    for attempt in range(1, CONTENTION_TRIES + 1):
        try:
            with transaction(connection):
                put(connection, rows)
                apply_effects(connection, run_id, rows.tables)
                _move(connection, run_id, moved, now)
                _note(connection, run_id, gaps, floor, now)
            return
        except CONTENTION:
            if attempt == CONTENTION_TRIES:
                raise
            time.sleep(random.uniform(0.0, 0.05 * attempt))


def find_bad(connection: Connection, rows: Sequence[Row]) -> dict[int, str]:
    """Index of each row that Postgres refuses, with its reason, found by halving; writes nothing."""
    found: dict[int, str] = {}
    with transaction(connection):
        _halve(connection, list(enumerate(rows)), found)
        raise psycopg.Rollback
    return found


def put(connection: Connection, rows: Encoded) -> None:
    """Merge rows into their tables, inside the caller's transaction. BadRow when one is refused."""
    for table, block in rows.blocks.items():
        with _bad_rows(table):
            if table not in STRAIGHT or not _added(connection, table, block):
                _merge(connection, table, block)


def _halve(connection: Connection, rows: Sequence[tuple[int, Row]], found: dict[int, str]) -> None:
    try:
        with connection.transaction():
            put(connection, encoded(row for _, row in rows))
        return
    except BadRow as error:
        if len(rows) == 1:
            found[rows[0][0]] = str(error)
            return
    middle = len(rows) // 2
    _halve(connection, rows[:middle], found)
    _halve(connection, rows[middle:], found)


def _added(connection: Connection, table: str, block: bytes) -> bool:
    """Whether the rows could be added, all of them being new."""
    try:
        with connection.transaction():
            _copy(connection, table, table, block)
    except psycopg.errors.UniqueViolation:
        return False
    return True


def _merge(connection: Connection, table: str, block: bytes) -> None:
    # Made anew each time: behind a pooler the next transaction may meet another server process.
    connection.execute(f"CREATE TEMP TABLE staged (LIKE {table}) ON COMMIT DROP".encode())
    _copy(connection, "staged", table, block)
    connection.execute(upsert(table).encode())
    connection.execute("DROP TABLE staged")


def _copy(connection: Connection, into: str, table: str, block: bytes) -> None:
    names = ", ".join(COLUMNS[table].names)
    statement = f"COPY {into} ({names}) FROM STDIN (FORMAT binary)".encode()
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        copy.write(block)


def _move(
    connection: Connection, run_id: str, moved: Mapping[str, Position], now: datetime
) -> None:
    connection.cursor().executemany(
        "INSERT INTO recorder_cursor AS c (run_id, log, sequence, dead_lettered, updated_at) "
        "VALUES (%s, %s, %s, %s, %s) ON CONFLICT (run_id, log) DO UPDATE SET "
        "sequence = greatest(c.sequence, EXCLUDED.sequence), "
        "dead_lettered = greatest(c.dead_lettered, EXCLUDED.dead_lettered), "
        "updated_at = EXCLUDED.updated_at",
        [(run_id, log, at.sequence, at.dead_lettered, now) for log, at in sorted(moved.items())],
    )


def _note(
    connection: Connection, run_id: str, gaps: Sequence[Gap], floor: int, now: datetime
) -> None:
    connection.cursor().executemany(
        "INSERT INTO recorder_gap (run_id, log, first_seq, last_seq, floor, noticed_at) "
        "VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
        [(run_id, gap.log, gap.first, gap.last, floor, now) for gap in gaps],
    )


@contextmanager
def _bad_rows(table: str) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        if (error.sqlstate or "")[:2] in REFUSALS:
            raise BadRow(f"{table}: {_first_line(error)}") from error
        raise
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadRow(f"{table}: {error}") from error


def _first_line(error: psycopg.Error) -> str:
    return str(error).strip().split("\n", 1)[0]
