"""What summary.json and report.html need to know of a run."""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from store.database import Connection, reading
from store.queries import Rows, fetch

Points = list[tuple[int, float]]
"""(step, value)."""
Pauses = Sequence[tuple[float, float]]
"""From and to, in seconds since the epoch."""

STEPS = """
    SELECT step, status::text, groups, generations, tokens, staleness_max, reward_mean, metrics,
        extract(epoch FROM committed_at)::double precision AS at
    FROM learner_step WHERE run_id = %(run)s AND status <> 'planned' ORDER BY step
"""
EVALUATIONS = """
    SELECT version, step, benchmark, items, score FROM evaluation
    WHERE run_id = %(run)s ORDER BY version, benchmark
"""
STALENESS = (
    "SELECT staleness, groups FROM staleness_histogram WHERE run_id = %(run)s ORDER BY staleness"
)
COUNTS = """
    SELECT state::text, drop_reason AS reason, sum(groups)::bigint AS groups FROM group_count
    WHERE run_id = %(run)s AND purpose = 'train' AND groups > 0 GROUP BY 1, 2 ORDER BY 3 DESC, 2
"""
MIXTURE = """
    SELECT domain, target_share AS target, requested, generated, admitted, trained FROM mixture_audit
    WHERE run_id = %(run)s AND update_no = (SELECT max(update_no) FROM mixture WHERE run_id = %(run)s)
    ORDER BY domain
"""
SPAN = """
    SELECT extract(epoch FROM r.started_at)::double precision AS started,
        extract(epoch FROM r.ended_at)::double precision AS ended,
        (SELECT extract(epoch FROM min(requested_at))::double precision FROM prompt_group AS g
            WHERE g.run_id = r.run_id AND g.purpose = 'train') AS first_request,
        r.status, r.reason
    FROM run AS r WHERE r.run_id = %(run)s
"""
EXAMPLES = """
    SELECT DISTINCT ON (m.step, g.domain, v.score = 1) m.step, g.domain, v.score = 1 AS right,
        p.text AS prompt, s.target, x.text AS answer, v.extracted
    FROM batch_member AS m
    JOIN prompt_group AS g ON g.run_id = m.run_id AND g.group_id = m.group_id
    JOIN generation AS x ON x.run_id = m.run_id AND x.group_id = m.group_id
    JOIN current_verdict AS v ON v.run_id = x.run_id AND v.group_id = x.group_id
        AND v.generation_index = x.generation_index AND (v.score = 1 OR v.score = 0)
    LEFT JOIN rendered_prompt AS p ON p.prompt_sha256 = g.prompt_sha256
    LEFT JOIN sample AS s ON s.sample_key = g.sample_key
    JOIN (
        SELECT domain, min(trained_step) AS first, max(trained_step) AS last
        FROM prompt_group WHERE run_id = %(run)s AND state = 'trained' GROUP BY domain
    ) AS d ON d.domain = g.domain AND m.step IN (d.first, d.last)
    WHERE m.run_id = %(run)s
    ORDER BY m.step, g.domain, v.score = 1, m.position, x.generation_index
"""


def summary(url: str, run_id: str, pauses: Pauses = ()) -> dict[str, Any]:
    """The numbers of summary.json but for the proofs; None where there is nothing to tell yet."""
    with reading(url) as connection:
        steps = fetch(connection, STEPS, run=run_id)
        evaluations = fetch(connection, EVALUATIONS, run=run_id)
        counts = fetch(connection, COUNTS, run=run_id)
        span = fetch(connection, SPAN, run=run_id)
        staleness = fetch(connection, STALENESS, run=run_id)
    return summarise(run_id, steps, evaluations, counts, staleness, span[0] if span else {}, pauses)


def summarise(
    run_id: str,
    steps: Rows,
    evaluations: Rows,
    counts: Rows,
    staleness: Rows,
    span: dict[str, Any],
    pauses: Pauses = (),
) -> dict[str, Any]:
    """pauses: times at which nothing of the run ran; no duration and no rate counts them."""
    trained = [step for step in steps if step["status"] == "trained"]
    rewards = [step["reward_mean"] for step in trained if step["reward_mean"] is not None]
    tenth = math.ceil(len(rewards) / 10)
    samples = sum(step["generations"] or 0 for step in trained)
    tokens = sum(step["tokens"] or 0 for step in trained)
    first, last = span.get("first_request"), steps[-1]["at"] if steps else None
    training_s = duration(first, last, pauses)
    started, ended = span.get("started"), span.get("ended") or last
    versions = sorted({row["version"] for row in evaluations})
    return {
        "run_id": run_id,
        "status": span.get("status"),
        "reason": span.get("reason"),
        "steps": len(steps),
        "wall_s": duration(started, ended, pauses),
        "trained_groups": sum(row["groups"] for row in counts if row["state"] == "trained"),
        "dropped_groups": {
            row["reason"]: row["groups"] for row in counts if row["state"] == "dropped"
        },
        "failed_groups": sum(row["groups"] for row in counts if row["state"] == "failed"),
        "reward_first": fmean(rewards[:tenth]) if rewards else None,
        "reward_last": fmean(rewards[-tenth:]) if rewards else None,
        "eval_first": accuracy(evaluations, versions[0]) if versions else None,
        "eval_last": accuracy(evaluations, versions[-1]) if versions else None,
        "samples": samples,
        "tokens": tokens,
        "samples_per_s": samples / training_s if training_s else None,
        "tokens_per_s": tokens / training_s if training_s else None,
        "staleness_max": max((row["staleness"] for row in staleness), default=None),
    }


def duration(first: float | None, last: float | None, pauses: Pauses) -> float | None:
    if first is None or last is None:
        return None
    paused = sum(max(0.0, min(last, end) - max(first, begin)) for begin, end in pauses)
    return last - first - paused


def accuracy(evaluations: Rows, version: int) -> float | None:
    """Held-out accuracy of a version over the items of all benchmarks; None when one has no score."""
    rows = [row for row in evaluations if row["version"] == version]
    items = sum(row["items"] for row in rows)
    if not items or any(row["score"] is None for row in rows):
        return None
    return sum(row["score"] * row["items"] for row in rows) / items


def report(url: str, run_id: str) -> dict[str, Any]:
    """What report.html shows beside the summary.

    reward, accuracy: domain or benchmark -> points; staleness: versions behind -> trained groups;
    mixture, examples: rows; drops: reason -> groups; throughput: (step, trained answers per second).
    """
    with reading(url) as connection:
        steps = fetch(connection, STEPS, run=run_id)
        evaluations = fetch(connection, EVALUATIONS, run=run_id)
        counts = fetch(connection, COUNTS, run=run_id)
        return {
            "reward": reward_by_domain(steps),
            "accuracy": _accuracy_points(evaluations),
            "staleness": {
                row["staleness"]: row["groups"] for row in fetch(connection, STALENESS, run=run_id)
            },
            "mixture": fetch(connection, MIXTURE, run=run_id),
            "drops": {
                row["reason"] or row["state"]: row["groups"]
                for row in counts
                if row["state"] in ("dropped", "failed")
            },
            "throughput": throughput(steps),
            "examples": _examples(connection, run_id),
        }


def reward_by_domain(steps: Rows) -> dict[str, Points]:
    found: dict[str, Points] = {}
    for step in steps:
        for name, value in (step["metrics"] or {}).items():
            if name.startswith("reward/") and value is not None:
                found.setdefault(name.removeprefix("reward/"), []).append((step["step"], value))
    return found


def throughput(steps: Rows) -> Points:
    """Trained answers per second between one commit and the next."""
    return [
        (step["step"], (step["generations"] or 0) / (step["at"] - before["at"]))
        for before, step in pairwise(steps)
        if step["at"] > before["at"]
    ]


def _accuracy_points(evaluations: Rows) -> dict[str, Points]:
    found: dict[str, Points] = {}
    for row in evaluations:
        if row["score"] is not None:
            found.setdefault(row["benchmark"], []).append((row["step"], row["score"]))
    return found


def _examples(connection: Connection, run_id: str) -> Rows:
    """A right and a wrong answer by domain, of the first and the last step that trained on it."""
    return fetch(connection, EXAMPLES, run=run_id)
