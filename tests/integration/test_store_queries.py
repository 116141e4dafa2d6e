"""What people ask: any SQL that only reads, timelines, and the numbers of summary and report."""

import orjson
import pytest

from broker.errors import BadConfiguration, TooLong
from store import history, queries
from store.database import connect
from store.summary import report, summary
from tests.store_tables import write_run
from tests.store_world import RUN, a_small_run


@pytest.fixture
def recorded_url(postgres_url: str) -> str:
    """A database with the small run in it."""
    with connect(postgres_url) as connection:
        write_run(connection, RUN, a_small_run())
    return postgres_url


def test_a_question_is_answered_in_rows_that_json_can_hold(recorded_url: str):
    query = """-- with a comment, and a % sign
        SELECT state, count(*) AS groups, avg(size)::numeric AS size, min(requested_at) AS first,
            'NaN'::float8 AS odd, prompt_sha256 IS NULL AS bare, '\\x0aff'::bytea AS raw
        FROM prompt_group WHERE group_id LIKE '0%' GROUP BY state, 6 ORDER BY 1"""

    rows = queries.sql(recorded_url, query)

    assert [(row["state"], row["groups"], row["size"]) for row in rows] == [
        ("failed", 1, 2), ("dropped", 3, 2), ("trained", 5, 2)]  # fmt: skip
    assert rows[0]["first"] == "2023-11-14T22:13:20+00:00"
    assert (rows[0]["odd"], rows[0]["raw"]) == ("nan", "0aff")
    orjson.dumps(rows)


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM run", "", "  ;", "COMMIT; DELETE FROM run", "SELECT 1; DELETE FROM run",
        "WITH gone AS (DELETE FROM run RETURNING *) SELECT * FROM gone",
        "EXPLAIN ANALYZE DELETE FROM run", "SELECT * INTO stolen FROM run",
        "COPY run TO '/tmp/run'", "COPY (SELECT 1) TO PROGRAM 'true'", "CREATE TABLE t (a int)",
        "SELECT set_config('transaction_read_only', 'off', false)", "SET TRANSACTION READ WRITE",
        "SELECT nothing FROM nowhere", "SELECT pg_read_file('/etc/passwd')",
        "DO $$ BEGIN DELETE FROM run; END $$", "/* SELECT */ DELETE FROM run",
    ],
)  # fmt: skip
def test_whatever_would_change_something_is_refused(recorded_url: str, query: str):
    with pytest.raises(BadConfiguration):
        queries.sql(recorded_url, query)

    assert len(queries.runs(recorded_url)) == 1


def test_a_question_that_takes_or_says_too_much_is_cut_off(recorded_url: str):
    with pytest.raises(TooLong, match=r"longer than 0\.2 s"):
        queries.sql(recorded_url, "SELECT pg_sleep(5)", limit_s=0.2)
    with pytest.raises(BadConfiguration, match="more than 10 rows"):
        queries.sql(recorded_url, "SELECT generate_series(1, 11)", max_rows=10)


def test_the_timeline_of_a_sample_tells_what_happened_to_it_in_order(recorded_url: str):
    rows = history.sample(recorded_url, "math:1:4", RUN)

    events = [row["event"] for row in rows]
    assert events[0] == "requested"
    assert set(events) == {
        "requested", "generated", "verified", "decided", "trained", "regraded", "supervision",
        "shadow decision"}  # fmt: skip
    assert [row["at"] for row in rows] == sorted(row["at"] for row in rows)
    assert history.sample(recorded_url, "math:1:4", "another") == []
    assert [row["event"] for row in history.group(recorded_url, RUN, "00000011-0-0")][
        -1
    ] == "dropped"


def test_the_facts_of_a_group_hold_its_answers_with_verdict_and_decision(recorded_url: str):
    found = history.group_facts(recorded_url, RUN, "00000004-0-0")

    assert found is not None
    assert (found["state"], found["trained_step"], found["prompt"]) == ("trained", 1, "1+1=")
    first, second = found["answers"]
    assert (first["score"], first["advantage"], first["text"]) == (1.0, 0.5, "2")
    assert second["score"] == 1.0, "the revision counts, not the run's own verdict"
    assert history.group_facts(recorded_url, RUN, "nobody") is None


def test_the_facts_of_a_sample_hold_its_supervision(recorded_url: str):
    found = history.sample_facts(recorded_url, "math:1:4")

    assert found is not None
    assert found["target"] == "2"
    assert [(state["run_id"], state["visits"]) for state in found["supervision"]] == [(RUN, 2)]
    assert history.sample_facts(recorded_url, "math:1:0") is None


def test_drops_and_mixture_say_why_and_how_much(recorded_url: str):
    drops = {
        (row["state"], row["reason"]): row["groups"] for row in queries.drops(recorded_url, RUN)
    }
    (line,) = queries.mixture(recorded_url, RUN)

    assert drops == {
        ("dropped", "filtered:equal"): 1, ("dropped", "stale"): 1, ("dropped", "run_ended"): 1,
        ("failed", "engine: out of memory"): 1,
    }  # fmt: skip
    assert (line["update_no"], line["target_share"], line["trained"], line["trained_share"]) == (
        3, 1.0, 4, 1.0)  # fmt: skip
    assert len(queries.mixture(recorded_url, RUN, history=True)) == 2


def test_the_summary_counts_what_the_run_did(recorded_url: str):
    found = summary(recorded_url, RUN)

    assert (found["steps"], found["trained_groups"], found["failed_groups"]) == (3, 5, 1)
    assert found["dropped_groups"] == {"filtered:equal": 1, "stale": 1, "run_ended": 1}
    assert (found["samples"], found["tokens"], found["staleness_max"]) == (10, 30, 2)
    assert found["eval_first"] is None, "one item is missing, and null is not 0"
    assert found["status"] == "finished"


def test_the_report_has_a_right_and_a_wrong_answer_of_the_first_and_the_last_step(
    recorded_url: str,
):
    found = report(recorded_url, RUN)

    shown = [(row["step"], row["domain"], row["right"]) for row in found["examples"]]
    assert shown == [(1, "math", False), (1, "math", True), (3, "math", False), (3, "math", True)]
    assert found["staleness"] == {0: 2, 1: 2, 2: 1}
    assert found["reward"] == {"math": [(1, 0.5), (2, 0.5), (3, 0.5)]}
    assert found["drops"]["stale"] == 1


@pytest.mark.parametrize(
    ("view", "rows"),
    [("policy_decisions", 17), ("staleness_histogram", 3), ("drop_bias", 5), ("unlearnable", 0)],
)
def test_the_views_answer(recorded_url: str, view: str, rows: int):
    assert len(queries.sql(recorded_url, f"SELECT * FROM {view} WHERE run_id = '{RUN}'")) == rows


def test_a_sample_that_no_answer_solved_is_listed_as_unlearnable(recorded_url: str):
    with connect(recorded_url) as connection:
        connection.execute("UPDATE verdict SET score = 0 WHERE group_id = '00000007-0-0'")

    (row,) = queries.sql(recorded_url, "SELECT * FROM unlearnable")

    assert (row["sample_key"], row["visits"], row["answers"], row["solve_rate"]) == (
        "math:1:7", 1, 2, 0)  # fmt: skip


LOOKUPS = {
    "a sample": "SELECT * FROM sample_history WHERE sample_key = 'math:1:4'",
    "a sample's supervision": "SELECT * FROM supervision_state WHERE sample_key = 'math:1:4'",
    "a sample's evaluations": "SELECT * FROM evaluation_item WHERE sample_key = 'math:1:900'",
    "a group": f"SELECT * FROM prompt_group WHERE run_id = '{RUN}' AND group_id = '00000004-0-0'",
    "a group's answers": history.ANSWERS,
    "a group's decisions": (
        f"SELECT * FROM policy_decisions WHERE run_id = '{RUN}' AND group_id = '00000004-0-0'"
    ),
    "a group's steps": (
        f"SELECT * FROM batch_member WHERE run_id = '{RUN}' AND group_id = '00000004-0-0'"
    ),
    "a step": (
        "SELECT * FROM batch_member AS m JOIN generation AS x USING (run_id, group_id) "
        f"WHERE m.run_id = '{RUN}' AND m.step = 2"
    ),
    "the open groups": f"SELECT * FROM prompt_group WHERE run_id = '{RUN}' AND terminal_at IS NULL",
}


@pytest.mark.parametrize("lookup", LOOKUPS)
def test_lookups_have_an_index_to_use_however_large_the_tables(recorded_url: str, lookup: str):
    with connect(recorded_url) as connection:
        # Small tables are read whole; forbidden, that remains only where no index would serve.
        connection.execute("SET enable_seqscan = off")
        parameters = {"run": RUN, "group": "00000004-0-0"}
        plan = connection.execute(f"EXPLAIN {LOOKUPS[lookup]}".encode(), parameters).fetchall()

    assert "Seq Scan" not in str(plan), plan
