"""Fills an empty store by SQL: as many generations as asked for, by several runs over the same samples."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path

import psycopg

from store.database import Connection, connect
from store.models import TABLES

RUNS = 5
SIZE = 8
VISITS = 10
"""Of one sample, by one run."""
HELD_OUT = 500
"""Samples that are measured and not trained."""
GROUPS_PER_STEP = 20
EACH_RUN = "\n-- each run\n"
"""Parts what is put in once from what is put in for every run."""


def fill(url: str, generations: int) -> None:
    groups = generations // (RUNS * SIZE)
    numbers = {
        "groups": groups,
        "samples": groups // VISITS,
        "size": SIZE,
        "held_out": HELD_OUT,
        "step_groups": GROUPS_PER_STEP,
    }
    once, each_run = Path(__file__).with_suffix(".sql").read_text("utf-8").split(EACH_RUN)
    with connect(url) as connection:
        connection.autocommit = True
        # Nothing is to survive this server, and nothing is to run beside the lookups.
        connection.execute("ALTER SYSTEM SET autovacuum = off")
        connection.execute("SELECT pg_reload_conf()")
        for table in TABLES:
            connection.execute(f"ALTER TABLE {table} SET UNLOGGED".encode())
        put(connection, once, numbers)
        for run in run_names():
            begun = time.monotonic()
            put(connection, each_run, numbers | {"run": run})
            print(f"  {run}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
        connection.execute("ANALYZE")


def run_names() -> list[str]:
    return [f"run-{number}" for number in range(1, RUNS + 1)]


def put(connection: Connection, statements: str, values: Mapping[str, object]) -> None:
    # Several statements at once can have parameters only where the client puts them in.
    psycopg.ClientCursor(connection).execute(statements.encode(), values)
