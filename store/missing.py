"""What a store does not hold of a run because its logs were purged first: which groups, which steps."""

from collections.abc import Sequence
from dataclasses import dataclass

from broker.topology import Log
from store.database import Connection
from store.gaps import Gap, spelled

Range = tuple[int, int]

GAPS = """
    SELECT log, first_seq, last_seq FROM recorder_gap WHERE run_id = %(run)s ORDER BY log, first_seq
"""
GROUPS = """
    WITH purged AS (
        SELECT max(floor) AS floor FROM recorder_gap WHERE run_id = %(run)s
    ), asked AS (
        -- Requests are numbered without gaps. Up to the floor all have ended.
        SELECT n, n <= floor AS ended, g.*
        FROM purged, generate_series(
            1, greatest(floor, (SELECT max(request_seq) FROM prompt_group WHERE run_id = %(run)s))
        ) AS n
        LEFT JOIN prompt_group AS g ON g.run_id = %(run)s AND g.request_seq = n
    ), lacking AS (
        SELECT 1 AS place, 'request' AS what, n FROM asked WHERE requests_seq IS NULL
        UNION ALL SELECT 2, 'answers', n FROM asked
            WHERE generated_seq IS NULL AND (ended OR verified_seq > 0) AND {not_cut_off}
        UNION ALL SELECT 3, 'verdicts', n FROM asked
            WHERE verified_seq IS NULL AND (ended OR annotated_seq > 0) AND {not_cut_off}
        UNION ALL SELECT 4, 'decision', n FROM asked
            WHERE annotated_seq IS NULL AND coalesce(purpose, 'train') = 'train'
            AND (ended OR trained_step > 0 OR dropped_step > 0) AND {not_cut_off}
        UNION ALL SELECT 5, 'end', n FROM asked WHERE ended AND terminal_at IS NULL
    )
    SELECT what, min(n), max(n) FROM (
        SELECT *, n - row_number() OVER (PARTITION BY what ORDER BY n) AS island FROM lacking
    ) AS islands GROUP BY place, what, island ORDER BY place, min(n)
""".format(not_cut_off="coalesce(drop_reason, '') <> 'run_ended'")
"""What is not known of which requests, in ranges."""
STEPS = """
    WITH taken AS (
        SELECT n, max(n) OVER () AS newest, s.planned_seq, s.committed_seq
        FROM generate_series(1, (SELECT max(step) FROM learner_step WHERE run_id = %(run)s)) AS n
        LEFT JOIN learner_step AS s ON s.run_id = %(run)s AND s.step = n
    ), lacking AS (
        SELECT 1 AS place, 'plan' AS what, n FROM taken WHERE planned_seq IS NULL
        UNION ALL SELECT 2, 'commit', n FROM taken WHERE committed_seq IS NULL AND n < newest
    )
    SELECT what, min(n), max(n) FROM (
        SELECT *, n - row_number() OVER (PARTITION BY what ORDER BY n) AS island FROM lacking
    ) AS islands GROUP BY place, what, island ORDER BY place, min(n)
"""
SHOWN = 8


@dataclass(frozen=True)
class Missing:
    """Empty when the store holds all that was ever said in the run's logs."""

    gaps: Sequence[Gap]
    groups: dict[str, list[Range]]
    """What is not known -> numbers of the requests, first and last of each stretch."""
    steps: dict[str, list[Range]]

    def __bool__(self) -> bool:
        return bool(self.gaps)

    def lines(self) -> list[str]:
        """For people; nothing when nothing is missing."""
        found = []
        for log in Log:
            ranges = [(gap.first, gap.last) for gap in self.gaps if gap.log is log]
            if ranges:
                found.append(f"purged from {log}: messages {listed(ranges)}")
        found += [f"groups without {what}: requests {listed(r)}" for what, r in self.groups.items()]
        found += [f"steps without {what}: {listed(r)}" for what, r in self.steps.items()]
        return found

    def tree(self) -> dict[str, object]:
        """For JSON."""
        return {
            "purged": [{"log": gap.log, "first": gap.first, "last": gap.last} for gap in self.gaps],
            "groups_without": self.groups,
            "steps_without": self.steps,
        }


def missing(connection: Connection, run_id: str) -> Missing:
    """Inside the caller's transaction."""
    gaps = gaps_of(connection, run_id)
    if not gaps:
        return Missing((), {}, {})
    return Missing(gaps, _ranges(connection, GROUPS, run_id), _ranges(connection, STEPS, run_id))


def gaps_of(connection: Connection, run_id: str) -> list[Gap]:
    """What was purged before it was recorded; inside the caller's transaction."""
    found = connection.execute(GAPS, {"run": run_id}).fetchall()
    return [Gap(Log(log), first, last) for log, first, last in found]


def _ranges(connection: Connection, query: str, run_id: str) -> dict[str, list[Range]]:
    found: dict[str, list[Range]] = {}
    for what, first, last in connection.execute(query.encode(), {"run": run_id}):
        found.setdefault(what, []).append((first, last))
    return found


def listed(ranges: Sequence[Range]) -> str:
    """`1-200, 203 (201 in all)`; the first few of many."""
    shown = ", ".join(spelled(*one) for one in ranges[:SHOWN])
    more = f", and {len(ranges) - SHOWN} stretches more" if len(ranges) > SHOWN else ""
    return f"{shown}{more} ({sum(last - first + 1 for first, last in ranges):,} in all)"
