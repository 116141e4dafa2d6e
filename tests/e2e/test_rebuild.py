"""`sluice db rebuild`: a lost database costs nothing while the logs are there."""

import json
from collections.abc import Callable

import psycopg

from store.models import TABLES
from tests.e2e.cluster import Cluster

POSITIONS = {"recorder_cursor"}
"""How far a recorder has read: past what it told LEDGER itself, and when."""


def everything(url: str) -> dict[str, list[tuple]]:
    """All rows of all tables."""
    with psycopg.connect(url) as connection:
        return {
            name: connection.execute(
                f"SELECT * FROM {name} AS t ORDER BY t::text".encode()
            ).fetchall()
            for name in TABLES.keys() - POSITIONS
        }


def without_empty_counts(tables: dict[str, list[tuple]]) -> dict[str, list[tuple]]:
    """A state that groups passed through counts 0 of them in the end, if anybody saw them in it."""
    counts = [row for row in tables["group_count"] if row[-1] != 0]
    return tables | {"group_count": counts}


def test_an_empty_database_is_filled_as_it_was(finished_run: Cluster, postgres_url: str):
    asked = ("db", "rebuild", finished_run.run, "--store", postgres_url)
    before = without_empty_counts(everything(finished_run.postgres_url))

    (told,) = json.loads(finished_run.sluice(*asked, "--json").stdout)

    assert (told["run_id"], told["complete"]) == (finished_run.run, True)
    assert told["messages"] > 100
    assert without_empty_counts(everything(postgres_url)) == before
    assert before["generation"]
    refused = finished_run.sluice(*asked, code=2)
    assert "already holds rows of it" in refused.stderr


def test_a_run_that_the_broker_does_not_hold_is_refused_with_the_ones_it_holds(
    finished_run: Cluster, postgres_url: str
):
    refused = finished_run.sluice("db", "rebuild", "nosuch", "--store", postgres_url, code=2)

    assert "run nosuch: the broker holds no logs of it; known: " in refused.stderr
    assert "known: none" not in refused.stderr


def test_runs_whose_logs_are_gone_or_out_of_reach_are_told_as_incomplete(
    start_run: Callable[..., Cluster],
):
    run = start_run("gone")
    run.run_dir.mkdir(parents=True)
    (run.run_dir / "config.toml").write_text(run.config.read_text())

    away = run.run_dir.with_name("away")
    away.mkdir()
    (away / "config.toml").write_text(
        run.config.read_text().replace(
            "connect_wait_s = 20", 'url = "nats://127.0.0.1:9"\nconnect_wait_s = 1', 1
        )
    )

    # Without a URL the runs folder has a server of its own, which never held this run.
    alone = {"SLUICE_NATS__URL": None}
    out = run.sluice("db", "rebuild", code=1, environment=alone).stdout
    status = run.sluice("status", run.run, code=2, environment=alone).stderr
    kept = run.sluice("runs", "--delete", "away", code=2, environment=alone).stderr

    unreachable = "nats.url nats://127.0.0.1:9: not connected within 1 s"
    told = {tuple(lines) for lines in zip(*[iter(out.splitlines())] * 2, strict=True)}
    assert {(head, what.partition(" (")[0]) for head, what in told} == {
        (f"{run.run}: 0 messages; NOT COMPLETE", "  the broker holds no logs of this run"),
        ("away: 0 messages; NOT COMPLETE", f"  its logs cannot be opened: {unreachable}"),
    }
    assert status == f"sluice: run {run.run}: the broker holds no logs of it\n"
    assert f"run away: {unreachable}" in kept
    assert f"remove {away}" in kept
