"""The ninth proof: every message that the logs still hold and that counts was recorded, and nothing else was.

Headers are enough: groups are compared by id and sequence, LEDGER by sequence.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from broker.bus import Bus, Stored
from broker.topology import H_GROUP, H_KIND, H_REQUEST_SEQ, Log
from store import closing, writer
from store.closing import Ending
from store.database import Connection, connect, transaction
from store.intake import LOGS
from store.writer import Position

COLUMNS = {
    Log.REQUESTS: "requests_seq",
    Log.GENERATED: "generated_seq",
    Log.VERIFIED: "verified_seq",
    Log.ANNOTATED: "annotated_seq",
}
WITHOUT_ROWS = frozenset(("reader_advanced", "log_purged", "run_draining", "run_started"))
"""Kinds of LEDGER that leave no row of their own sequence."""
LEDGER_ROWS = " UNION ".join(
    f"SELECT {column} AS seq FROM {table} WHERE run_id = %(run)s "
    f"AND {column} BETWEEN %(first)s AND %(last)s AND {column} > 0"
    for table, column in (
        ("learner_step", "planned_seq"), ("learner_step", "committed_seq"), ("run_end", "event_id"),
        ("supervision_event", "event_id"), ("mixture", "event_id"), ("weights", "event_id"),
        ("checkpoint", "event_id"), ("evaluation", "event_id"), ("incident", "event_id"),
        ("verdict", "event_id"), ("group_decision", "event_id"),
    )
)  # fmt: skip
"""Sequences of LEDGER that left a row; 0 stands for rows that come from elsewhere."""
CHUNK = 1000
READ_WAIT_S = 5.0


@dataclass
class Comparison:
    """What was found in one log."""

    log: Log
    compared: int = 0
    missing: list[Mapping[str, Any]] = field(default_factory=list)
    """Messages that were not recorded."""
    seconds: int = 0
    """Messages of a group whose earlier one was recorded: only the first counts."""
    unnamed: int = 0
    """Messages whose headers say too little."""


async def agreement(
    url: str, run_id: str, bus: Bus, *, live: bool
) -> tuple[list[Mapping[str, Any]], str]:
    """What speaks against it, and what was compared.

    Of an ended run all that counts must be there; of a live one, what the recorder says it has.
    """
    connection = await asyncio.to_thread(connect, url, application="sluice audit")
    try:
        at = await asyncio.to_thread(writer.positions, connection, run_id)
        ends = await asyncio.to_thread(closing.endings, connection, run_id)
        against: list[Mapping[str, Any]] = []
        details = []
        for log in LOGS:
            position = at.get(log, Position())
            ended = not live and ends
            due = ends[-1].last_sequences.get(log, 0) if ended else position.sequence
            found, detail = await _one_log(connection, bus, log, position, due, ends)
            against += found
            details.append(detail)
        return against, "; ".join(details)
    finally:
        connection.close()


async def _one_log(
    connection: Connection, bus: Bus, log: Log, at: Position, due: int, ends: Sequence[Ending]
) -> tuple[list[Mapping[str, Any]], str]:
    state = await bus.state(log)
    against: list[Mapping[str, Any]] = []
    if state.last < due:
        against.append({"log": log, "problem": f"the log ends at {state.last}, before {due}"})
    last = min(state.last, due)
    seen = await _compare(connection, bus, log, state.first, last, ends)
    recorded = await asyncio.to_thread(_recorded, connection, bus.run, log, state.first, last)
    if at.sequence < last:
        against.append({"log": log, "problem": f"recorded up to {at.sequence} of {last}"})
    if len(seen.missing) + seen.unnamed > at.dead_lettered:
        against += seen.missing or [{"log": log, "problem": f"{seen.unnamed} without headers"}]
    # A LEDGER that was purged keeps the last message of each subject: there, rows may have none.
    whole = state.messages == state.last - state.first + 1
    if whole and recorded > seen.compared - len(seen.missing):
        extra = recorded - seen.compared + len(seen.missing)
        against.append({"log": log, "problem": f"{extra} recorded that the log does not hold"})
    dead = f", {at.dead_lettered} dead letters" if at.dead_lettered else ""
    purged = f", from {state.first}" if state.first > 1 else ""
    purged += "" if whole else ", others purged"
    seconds = f", {seen.seconds} second copies" if seen.seconds else ""
    return against, f"{log}: {seen.compared} messages{purged}, to {last}{dead}{seconds}"


async def _compare(
    connection: Connection, bus: Bus, log: Log, first: int, last: int, ends: Sequence[Ending]
) -> Comparison:
    seen = Comparison(log)
    cursor = await bus.cursor(log, max(0, first - 1), headers_only=True)
    try:
        while cursor.position < last:
            chunk = await cursor.read(CHUNK, READ_WAIT_S)
            counted = [stored for stored in chunk if stored.sequence <= last]
            if not counted:
                break  # purged meanwhile
            wanted = _wanted(seen, counted, ends)
            missing, seconds = await asyncio.to_thread(
                partial(_missing, connection, bus.run, log, wanted)
            )
            seen.compared += len(wanted) - seconds
            seen.seconds += seconds
            seen.missing += [
                {"log": log, "sequence": sequence, "group_id": group, "problem": "not recorded"}
                for sequence, group in missing
            ]
    finally:
        await cursor.close()
    return seen


def _wanted(
    seen: Comparison, chunk: Sequence[Stored], ends: Sequence[Ending]
) -> list[tuple[int, str]]:
    """(sequence, group id or kind) of the messages that must have been recorded."""
    wanted = []
    for stored in chunk:
        if seen.log is Log.LEDGER:
            kind = stored.headers.get(H_KIND, "")
            if kind not in WITHOUT_ROWS:
                wanted.append((stored.sequence, kind))
            continue
        group, request = stored.headers.get(H_GROUP), stored.headers.get(H_REQUEST_SEQ, "")
        if group is None or not request.isdigit():
            seen.unnamed += 1
        elif not any(end.is_late(seen.log, stored.sequence, int(request)) for end in ends):
            wanted.append((stored.sequence, group))
    return wanted


def _missing(
    connection: Connection, run_id: str, log: Log, wanted: Sequence[tuple[int, str]]
) -> tuple[list[tuple[int, str]], int]:
    """Those that were not recorded, and how many are second copies."""
    if not wanted:
        return [], 0
    with transaction(connection):
        if log is Log.LEDGER:
            bounds = {"run": run_id, "first": wanted[0][0], "last": wanted[-1][0]}
            found = {row[0] for row in connection.execute(LEDGER_ROWS.encode(), bounds)}
            return [pair for pair in wanted if pair[0] not in found], 0
        column = COLUMNS[log]
        query = (
            f"SELECT group_id, {column} FROM prompt_group "
            f"WHERE run_id = %s AND group_id = ANY(%s) AND {column} IS NOT NULL"
        )
        groups = [group for _, group in wanted]
        known = dict(connection.execute(query.encode(), [run_id, groups]).fetchall())
    missing = [pair for pair in wanted if known.get(pair[1], pair[0] + 1) > pair[0]]
    return missing, sum(known.get(group, sequence) < sequence for sequence, group in wanted)


def _recorded(connection: Connection, run_id: str, log: Log, first: int, last: int) -> int:
    """How many rows say that they came from this part of the log."""
    if log is Log.LEDGER:
        query = f"SELECT count(*) FROM ({LEDGER_ROWS}) AS found"
    else:
        column = COLUMNS[log]
        query = (
            f"SELECT count(*) FROM prompt_group WHERE run_id = %(run)s "
            f"AND {column} BETWEEN %(first)s AND %(last)s"
        )
    with transaction(connection):
        row = connection.execute(
            query.encode(), {"run": run_id, "first": first, "last": last}
        ).fetchone()
    return 0 if row is None else int(row[0])
