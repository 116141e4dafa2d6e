"""What `sluice regrade` reads: recorded answers with their newest verdicts, a group at a time."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from psycopg.rows import dict_row

from store.database import reading

BATCH_GROUPS = 200

GROUPS = """
    SELECT g.group_id, s.target, s.labeled, s.verifier, s.options
    FROM prompt_group AS g JOIN sample AS s USING (sample_key)
    WHERE g.run_id = %(run)s AND g.group_id > %(after)s
        AND EXISTS (SELECT FROM verdict AS v
            WHERE v.run_id = g.run_id AND v.group_id = g.group_id AND v.event_id = 0)
    ORDER BY g.group_id LIMIT %(limit)s
"""
ANSWERS = """
    SELECT n.group_id, n.generation_index, n.text, v.status, v.score, v.verifier, v.verifier_version,
        v.extracted
    FROM generation AS n
    JOIN LATERAL (
        SELECT * FROM verdict AS v
        WHERE v.run_id = n.run_id AND v.group_id = n.group_id
            AND v.generation_index = n.generation_index
        ORDER BY v.event_id DESC LIMIT 1
    ) AS v ON true
    WHERE n.run_id = %(run)s AND n.group_id = ANY(%(groups)s)
    ORDER BY n.group_id, n.generation_index
"""
ENDED = "SELECT ended_at IS NOT NULL FROM run WHERE run_id = %(run)s"


@dataclass(frozen=True)
class Answer:
    """An answer and the verdict that counts now."""

    index: int
    text: str
    status: str
    score: float | None
    verifier: str
    verifier_version: str
    extracted: str | None


@dataclass
class Group:
    """A group's sample and answers."""

    group_id: str
    target: str | None
    verifier: dict[str, Any]
    options: dict[str, Any]
    answers: list[Answer] = field(default_factory=list)


def groups(url: str, run_id: str) -> Iterator[Group]:
    """Every verified group of a run, in the order of their ids; a bounded number in memory."""
    after = ""
    while batch := _batch(url, run_id, after):
        yield from batch
        after = batch[-1].group_id


def _batch(url: str, run_id: str, after: str) -> list[Group]:
    asked = {"run": run_id, "after": after, "limit": BATCH_GROUPS}
    with reading(url) as connection, connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(GROUPS.encode(), asked).fetchall()
        found = {row["group_id"]: _group(row) for row in rows}
        cursor.execute(ANSWERS.encode(), {"run": run_id, "groups": list(found)})
        for row in cursor:
            found[row.pop("group_id")].answers.append(
                Answer(index=row.pop("generation_index"), **row)
            )
    return list(found.values())


def _group(row: dict[str, Any]) -> Group:
    target = row["target"] if row["labeled"] else None
    return Group(row["group_id"], target, row["verifier"], row["options"] or {})


def ended(url: str, run_id: str) -> bool:
    """Whether the run has ended, so that no recorder follows its logs."""
    with reading(url) as connection:
        row = connection.execute(ENDED.encode(), {"run": run_id}).fetchone()
    return bool(row and row[0])
