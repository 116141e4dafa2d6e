"""Questions people ask of the store: any SQL, the runs, drops, the mixture. All read-only, all with a limit.

Rows come as dictionaries that JSON can hold.
"""

import re
from typing import Any

import psycopg
from psycopg.rows import dict_row

from broker.errors import BadConfiguration, TooLong
from store.database import Connection, connect, reading, transaction
from store.plain import plain

Rows = list[dict[str, Any]]

QUESTION = re.compile(
    r"(\s|\(|--[^\n]*(\n|$)|/\*.*?\*/)*(select|with|values|table|show|explain)\b",
    re.IGNORECASE | re.DOTALL,
)
"""How a statement that asks begins, after comments."""


def sql(url: str, query: str, *, limit_s: float = 30.0, max_rows: int = 100_000) -> Rows:
    """One question of the user's own, in a transaction that cannot write.

    BadConfiguration when it is no question, when Postgres refuses it, or when it has more than `max_rows`
    rows; TooLong after `limit_s`.
    """
    if QUESTION.match(query) is None:
        raise BadConfiguration(
            f"query {query.strip()[:60]!r}: expected SELECT, WITH, VALUES, TABLE, SHOW or EXPLAIN"
        )
    with connect(url, application="sluice sql") as connection:
        connection.read_only = True
        # Prepared, hence one statement: none can end the transaction and go on behind it.
        connection.prepare_threshold = 0
        try:
            with transaction(connection, limit_s=limit_s):
                _as_reader(connection)
                with connection.cursor(row_factory=dict_row) as cursor:
                    cursor.execute(query.encode(), prepare=True)
                    rows = cursor.fetchmany(max_rows + 1)
        except psycopg.errors.QueryCanceled as error:
            raise TooLong(f"the query took longer than {limit_s:g} s") from error
        except psycopg.Error as error:
            raise BadConfiguration(f"Postgres refused the query: {str(error).strip()}") from error
    if len(rows) > max_rows:
        raise BadConfiguration(f"the query has more than {max_rows} rows: add a LIMIT")
    return [{name: plain(value) for name, value in row.items()} for row in rows]


def _as_reader(connection: Connection) -> None:
    """Where the read-only role was made, as that role: a superuser could do more than write tables."""
    found = connection.execute(
        "SELECT 1 FROM pg_roles WHERE rolname = 'sluice_reader'"
        " AND pg_has_role(current_user, oid, 'MEMBER')"
    ).fetchone()
    if found is not None:
        connection.execute("SET LOCAL ROLE sluice_reader")


def runs(url: str) -> Rows:
    """Every run, newest first."""
    query = """
        SELECT r.run_id, r.name, r.status, r.reason, r.started_at, r.ended_at,
            coalesce((r.config->'run'->>'steps')::integer, 0) AS steps_wanted,
            (SELECT count(*) FROM learner_step AS s
                WHERE s.run_id = r.run_id AND s.status <> 'planned') AS steps,
            (SELECT coalesce(sum(groups), 0) FROM group_count AS c
                WHERE c.run_id = r.run_id AND c.state = 'trained') AS trained_groups
        FROM run AS r ORDER BY r.started_at DESC NULLS LAST
    """
    with reading(url) as connection:
        return fetch(connection, query)


def drops(url: str, run_id: str) -> Rows:
    """Why train groups were not trained, by reason and domain."""
    query = """
        SELECT state::text, drop_reason AS reason, domain, groups FROM group_count
        WHERE run_id = %(run)s AND purpose = 'train' AND state IN ('dropped', 'failed') AND groups > 0
        ORDER BY groups DESC, reason, domain
    """
    with reading(url) as connection:
        return fetch(connection, query, run=run_id)


def mixture(url: str, run_id: str, *, history: bool = False) -> Rows:
    """Target against realised shares by domain: of the newest update, or of all."""
    query = """
        SELECT * FROM mixture_audit WHERE run_id = %(run)s
            AND (%(all)s OR update_no = (SELECT max(update_no) FROM mixture WHERE run_id = %(run)s))
        ORDER BY update_no, domain
    """
    with reading(url) as connection:
        return fetch(connection, query, run=run_id, all=history)


def fetch(connection: Connection, query: str, **parameters: object) -> Rows:
    """Rows of a query of ours, as JSON knows them."""
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(query.encode(), parameters).fetchall()
    return [{name: plain(value) for name, value in row.items()} for row in rows]
