"""What happened to one sample or one group, as rows in the order of time."""

from typing import Any

from store.database import reading
from store.queries import Rows, fetch

TIMELINE = """
    SELECT at, run_id, group_id, event, step, detail FROM sample_history
    WHERE {filter} ORDER BY at NULLS LAST, array_position(
        ARRAY['requested', 'generated', 'verified', 'regraded', 'decided'], event) NULLS LAST, group_id
"""
ANSWERS = """
    SELECT x.group_id, x.generation_index, x.tokens, x.finish_reason, x.version_min, x.version_max,
        x.logprob_mean, v.status AS verdict, v.score, v.extracted, v.answer_key, v.answer_class,
        v.verifier, v.verifier_version, v.detail AS verdict_detail, a.target, a.target_source,
        a.admitted, a.reward, a.advantage, a.weight, a.reason, a.signals, x.text
    FROM generation AS x
    LEFT JOIN current_verdict AS v ON v.run_id = x.run_id AND v.group_id = x.group_id
        AND v.generation_index = x.generation_index
    LEFT JOIN annotation AS a ON a.run_id = x.run_id AND a.group_id = x.group_id
        AND a.generation_index = x.generation_index AND NOT a.shadow
    WHERE x.run_id = %(run)s AND x.group_id = %(group)s
    ORDER BY x.generation_index
"""


def sample(url: str, sample_key: str, run_id: str | None = None) -> Rows:
    """Timeline of a sample, of one run or of all; empty when nothing is known of it."""
    condition = "sample_key = %(sample)s AND (%(run)s::text IS NULL OR run_id = %(run)s)"
    with reading(url) as connection:
        query = TIMELINE.format(filter=condition)
        return fetch(connection, query, sample=sample_key, run=run_id)


def sample_facts(url: str, sample_key: str) -> dict[str, Any] | None:
    """The sample itself and its supervision by run; None when it is unknown."""
    with reading(url) as connection:
        found = fetch(connection, "SELECT * FROM sample WHERE sample_key = %(key)s", key=sample_key)
        state = "SELECT * FROM supervision_state WHERE sample_key = %(key)s ORDER BY run_id"
        states = fetch(connection, state, key=sample_key)
    return found[0] | {"supervision": states} if found else None


def group(url: str, run_id: str, group_id: str) -> Rows:
    """Timeline of a group; empty when nothing is known of it."""
    # By its sample first: the view has an index for that.
    condition = (
        "run_id = %(run)s AND group_id = %(group)s AND sample_key = (SELECT sample_key "
        "FROM prompt_group WHERE run_id = %(run)s AND group_id = %(group)s)"
    )
    with reading(url) as connection:
        return fetch(connection, TIMELINE.format(filter=condition), run=run_id, group=group_id)


def group_facts(url: str, run_id: str, group_id: str) -> dict[str, Any] | None:
    """The group's lifecycle row, its prompt, and its answers with verdicts and decisions."""
    query = """
        SELECT g.*, p.text AS prompt, s.target AS sample_target FROM prompt_group AS g
        LEFT JOIN rendered_prompt AS p ON p.prompt_sha256 = g.prompt_sha256
        LEFT JOIN sample AS s ON s.sample_key = g.sample_key
        WHERE g.run_id = %(run)s AND g.group_id = %(group)s
    """
    with reading(url) as connection:
        found = fetch(connection, query, run=run_id, group=group_id)
        answers = fetch(connection, ANSWERS, run=run_id, group=group_id)
    return found[0] | {"answers": answers} if found else None
