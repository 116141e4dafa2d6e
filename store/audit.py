"""`sluice audit verify`: nine proofs about a run, from what was recorded. Each can fail."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from psycopg.rows import dict_row

from broker.bus import Bus
from broker.errors import BadConfiguration, SluiceError
from store import proofs
from store.database import Connection, reading
from store.effects import STATE_COLUMNS
from store.log_proof import agreement
from store.missing import gaps_of
from store.plain import plain

EXAMPLES = 5

Parameters = Mapping[str, object]

QUERIES = {
    "staleness_bound": proofs.STALENESS,
    "trained_once": proofs.TRAINED_ONCE,
    "one_end": proofs.ONE_END,
    "steps_contiguous": proofs.STEPS,
    "batch_counts": proofs.BATCH_COUNTS,
    "supervision_fold": proofs.FOLD.format(columns=", ".join(STATE_COLUMNS)),
    "mixture_counts": proofs.MIXTURE,
    "logprobs_complete": proofs.LOGPROBS,
}
CLAIMS = {
    "staleness_bound": "no trained token was older than the bound",
    "trained_once": "no group was trained twice",
    "one_end": "every requested group ended in exactly one terminal state",
    "steps_contiguous": "steps are contiguous and versions monotone",
    "batch_counts": "batch members match step counts",
    "supervision_fold": "supervision_state is the fold of its events",
    "mixture_counts": "mixture counts match the groups",
    "logprobs_complete": "trained answers have a finite log-probability for every token",
    "agrees_with_logs": "the store agrees with what the logs hold",
}
"""Proof -> what it claims, in the order of their numbers 1..9."""


@dataclass(frozen=True)
class Proof:
    """One claim about a run, and whether it holds."""

    name: str
    claim: str
    ok: bool
    detail: str
    """What was looked at, or how much speaks against the claim."""
    examples: Sequence[Mapping[str, Any]] = field(default=())
    """Some of the rows that speak against it."""


@dataclass(frozen=True)
class RunFacts:
    run_id: str
    status: str
    max_staleness: int | None

    @property
    def live(self) -> bool:
        return self.status in ("running", "draining")


async def verify(url: str, run_id: str, bus: Bus | None, *, limit_s: float = 600.0) -> list[Proof]:
    """All nine proofs, from one snapshot of the store; the ninth asks the logs, and fails without a bus.

    BadConfiguration when the store does not know the run.
    """
    run, found = await asyncio.to_thread(_from_store, url, run_id, limit_s)
    return [*found, await _from_logs(url, run, bus)]


def facts(connection: Connection, run_id: str) -> RunFacts:
    row = connection.execute(
        "SELECT status, config->'run'->>'max_staleness' FROM run WHERE run_id = %s", [run_id]
    ).fetchone()
    if row is None:
        raise BadConfiguration(f"run {run_id!r}: the store knows no such run")
    status, limit = row
    # A configuration that leaves it out has the default of RunSettings written into it at the start.
    return RunFacts(run_id, status, int(limit) if limit is not None else None)


def _from_store(url: str, run_id: str, limit_s: float) -> tuple[RunFacts, list[Proof]]:
    with reading(url, limit_s=limit_s) as connection:
        run = facts(connection, run_id)
        parameters = {"run": run_id, "live": run.live, "limit": run.max_staleness}
        seen, gone = _seen(connection, run), _purged_unread(connection, run_id)
        return run, [_prove(connection, name, parameters, seen, gone) for name in QUERIES]


def _purged_unread(connection: Connection, run_id: str) -> str:
    """What every claim is to be read with: nothing is claimed of what was never recorded."""
    gaps = [str(gap) for gap in gaps_of(connection, run_id)]
    more = f" and {len(gaps) - EXAMPLES} more" if len(gaps) > EXAMPLES else ""
    return f"; purged before recorded: {', '.join(gaps[:EXAMPLES])}{more}" if gaps else ""


def _prove(
    connection: Connection, name: str, parameters: Parameters, seen: str, gone: str
) -> Proof:
    query = (
        f"SELECT *, count(*) OVER () AS against FROM ({QUERIES[name]}) AS found LIMIT {EXAMPLES}"
    )
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(query.encode(), parameters).fetchall()
    against = rows[0]["against"] if rows else 0
    examples = [
        {key: plain(value) for key, value in row.items() if key != "against"} for row in rows
    ]
    detail = (f"{against} against it" if rows else seen) + gone
    return Proof(name, CLAIMS[name], not rows, detail, examples)


def _seen(connection: Connection, run: RunFacts) -> str:
    row = connection.execute(
        "SELECT (SELECT coalesce(sum(groups), 0) FROM group_count WHERE run_id = %(run)s),"
        " (SELECT count(*) FROM learner_step WHERE run_id = %(run)s AND status <> 'planned')",
        {"run": run.run_id},
    ).fetchone()
    groups, steps = row if row is not None else (0, 0)
    live = "; the run goes on" if run.live else ""
    return f"holds for {groups} groups and {steps} steps{live}"


async def _from_logs(url: str, run: RunFacts, bus: Bus | None) -> Proof:
    name = "agrees_with_logs"
    if bus is None:
        return Proof(name, CLAIMS[name], False, "not proved: no broker was given")
    try:
        against, detail = await agreement(url, run.run_id, bus, live=run.live)
    except SluiceError as error:
        return Proof(name, CLAIMS[name], False, f"not proved: the broker did not answer: {error}")
    return Proof(name, CLAIMS[name], not against, detail, against[:EXAMPLES])
