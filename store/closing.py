"""The end of a run in the store: what RunEnded counts stays, what is still open is dropped, late output goes.

Idempotent, and the same whenever it happens after the counted messages were read: what counts is decided
by sequences, not by the time of reading.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from broker.messages import RunEnded
from broker.topology import Log
from store.database import Connection, transaction
from store.row import End

CLOSE_LIMIT_S = 900.0
"""Of each statement: closing looks at every group of the run once."""
GROUP_LOGS = (Log.REQUESTS, Log.GENERATED, Log.VERIFIED, Log.ANNOTATED)

LATE = """
    SELECT group_id FROM prompt_group
    WHERE run_id = %(run)s AND request_seq <= %(requests)s AND {column} > %(last)s
"""
UNDO_LATE = {
    Log.GENERATED: ("generated_seq", "", ("generation",)),
    Log.VERIFIED: ("verified_seq", "AND t.event_id = 0", ("verdict",)),
    Log.ANNOTATED: ("annotated_seq", "AND NOT t.shadow", ("annotation", "group_decision")),
}
"""Log -> column of prompt_group that says a message of it was read; which rows came from it."""

DROP_OPEN = """
    UPDATE prompt_group SET
        state = 'dropped', drop_reason = 'run_ended', terminal_at = %(at)s,
        dropped_step = NULL, dropped_staleness = NULL, ends = %(end)s,
        outcome = CASE WHEN annotated_seq > %(annotated)s THEN NULL ELSE outcome END,
        window_no = CASE WHEN annotated_seq > %(annotated)s THEN NULL ELSE window_no END,
        window_index = CASE WHEN annotated_seq > %(annotated)s THEN NULL ELSE window_index END,
        verified_ok = CASE WHEN verified_seq > %(verified)s THEN NULL ELSE verified_ok END,
        generated_seq = CASE WHEN generated_seq <= %(generated)s THEN generated_seq END,
        verified_seq = CASE WHEN verified_seq <= %(verified)s THEN verified_seq END,
        annotated_seq = CASE WHEN annotated_seq <= %(annotated)s THEN annotated_seq END
    WHERE run_id = %(run)s AND request_seq <= %(requests)s AND (
        -- How a group ended that may have been purged unread is not known.
        (terminal_at IS NULL AND request_seq > (
            SELECT coalesce(max(floor), 0) FROM recorder_gap WHERE run_id = %(run)s
        ))
        OR (ends = ANY(%(policy_ends)s) AND purpose = 'train' AND annotated_seq > %(annotated)s)
        OR (ends = ANY(%(verifier_ends)s) AND purpose <> 'train' AND verified_seq > %(verified)s)
    )
"""
END_RUN = """
    UPDATE run SET status = %(status)s, reason = %(reason)s, ended_at = %(at)s,
        last_event_id = %(event)s
    WHERE run_id = %(run)s AND last_event_id < %(event)s
"""


@dataclass(frozen=True)
class Ending:
    """One RunEnded: its place in LEDGER and what counts before it."""

    event_id: int
    last_sequences: Mapping[str, int]
    closed: bool = False

    def reached(self, positions: Mapping[str, int]) -> bool:
        """Whether every log has been read to its last sequence that counts."""
        counted = all(
            positions.get(log, 0) >= last
            for log, last in self.last_sequences.items()
            if log != Log.DEAD
        )
        return counted and positions.get(Log.LEDGER, 0) >= self.event_id

    def is_late(self, log: Log, sequence: int, request_seq: int) -> bool:
        """Whether a group's message came after the end of the run that had requested it."""
        return (
            log in GROUP_LOGS
            and sequence > self.last_sequences.get(log, 0)
            and request_seq <= self.last_sequences.get(Log.REQUESTS, 0)
        )


def ending(sequence: int, event: RunEnded) -> Ending:
    return Ending(sequence, event.last_sequences)


def endings(connection: Connection, run_id: str) -> list[Ending]:
    """Every end of the run that the store knows, oldest first; a resumed run has several."""
    with transaction(connection):
        found = connection.execute(
            "SELECT event_id, last_sequences, closed FROM run_end WHERE run_id = %s ORDER BY event_id",
            [run_id],
        ).fetchall()
    return [Ending(event_id, lasts, closed) for event_id, lasts, closed in found]


def close(connection: Connection, run_id: str, end: Ending) -> None:
    """Drop the groups that are open at this end as run_ended and give the run its final status."""
    lasts = {str(log).lower(): end.last_sequences.get(log, 0) for log in GROUP_LOGS}
    with transaction(connection, limit_s=CLOSE_LIMIT_S):
        known = connection.execute(
            "SELECT status, reason, ended_at FROM run_end WHERE run_id = %s AND event_id = %s FOR UPDATE",
            [run_id, end.event_id],
        ).fetchone()
        if known is None:
            return  # another recorder has not committed it yet; it will close it
        status, reason, at = known
        for log, (column, which, tables) in UNDO_LATE.items():
            late = {"run": run_id, "requests": lasts["requests"], "last": lasts[log.lower()]}
            for table in tables:
                connection.execute(
                    f"DELETE FROM {table} AS t WHERE t.run_id = %(run)s {which} "
                    f"AND t.group_id IN ({LATE.format(column=column)})".encode(),
                    late,
                )
        connection.execute(DROP_OPEN, _parameters(run_id, at, lasts))
        connection.execute(
            END_RUN,
            {"run": run_id, "status": status, "reason": reason, "at": at, "event": end.event_id},
        )
        connection.execute(
            "UPDATE run_end SET closed = true WHERE run_id = %s AND event_id = %s",
            [run_id, end.event_id],
        )


def _parameters(run_id: str, at: datetime, lasts: Mapping[str, int]) -> dict[str, object]:
    return {
        "run": run_id,
        "at": at,
        "end": End.RUN_ENDED,
        "policy_ends": [End.DROPPED_BY_POLICY, End.FAILED],
        "verifier_ends": [End.MEASURED, End.FAILED],
        **lasts,
    }
