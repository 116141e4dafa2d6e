"""What a finished run leaves, and what the commands say of it."""

import json
import re

import pytest

from store.audit import CLAIMS
from tests.e2e.cluster import ROLES, Cluster


def test_a_finished_run_leaves_its_summary(finished_run: Cluster):
    summary = json.loads((finished_run.run_dir / "summary.json").read_text())

    assert summary["run_id"] == finished_run.run
    assert (summary["status"], summary["steps"]) == ("finished", 6)
    assert summary["trained_groups"] == 6 * 4
    assert set(summary["dropped_groups"]) <= {"filtered:dynamic_sampling", "run_ended", "stale"}
    assert summary["wall_s"] > 0
    assert summary["samples_per_s"] > 0
    assert summary["tokens_per_s"] > summary["samples_per_s"]
    for name in ("reward_first", "reward_last", "eval_first", "eval_last"):
        assert 0 < summary[name] < 1, name
    assert 0 <= summary["staleness_max"] <= 2
    assert summary["proofs"] == dict.fromkeys(CLAIMS, True)


def test_a_finished_run_leaves_no_process(finished_run: Cluster):
    pids = json.loads((finished_run.run_dir / "pids.json").read_text())

    assert pids.keys() >= set(ROLES)
    assert not any(pids.values())


def test_a_finished_run_that_is_resumed_tells_its_outcome_and_stays_as_it_is(finished_run: Cluster):
    def files() -> dict[str, int]:
        return {str(p): p.stat().st_mtime_ns for p in finished_run.run_dir.rglob("*")}

    before = files()
    nobody = {"SLUICE_NATS__URL": "nats://127.0.0.1:9"}
    done = finished_run.sluice("run", "--resume", finished_run.run, environment=nobody)

    assert "has finished already" in done.stdout
    assert f"{finished_run.run}: finished" in done.stdout
    assert "proofs: all hold" in done.stdout
    assert files() == before


def test_a_run_that_ended_unseen_is_closed_without_another_start(finished_run: Cluster):
    """As when `sluice run` is killed between the run's end and its summary."""
    path = finished_run.run_dir / "summary.json"
    kept = path.read_text()
    path.unlink()
    roles = finished_run.run_dir / "logs" / "learner-0.log"
    before = roles.read_text()

    out = finished_run.sluice("run", "--resume", finished_run.run, limit_s=60).stdout

    again, first = json.loads(path.read_text()), json.loads(kept)
    path.write_text(kept)
    assert out.count("  holds  ") == 9
    assert again["wall_s"] == first["wall_s"]
    assert roles.read_text() == before


def test_the_report_needs_nothing_but_itself(finished_run: Cluster):
    report = (finished_run.run_dir / "report.html").read_text()

    assert finished_run.run in report
    assert "<svg" in report
    assert not re.findall(r"""(?:src|href)\s*=|url\(|@import|<script""", report)


def test_the_end_of_a_run_is_told_with_proofs_and_queries_that_work(finished_run: Cluster):
    out = (finished_run.directory / "run.out").read_text()

    assert f"{finished_run.run}: finished" in out
    assert out.count("  holds  ") == 9
    assert str(finished_run.run_dir / "report.html") in out
    queries = re.findall(r'sluice sql "(.+)"', out)
    assert len(queries) == 3
    for query in queries:
        assert "row" in finished_run.sluice("sql", query).stdout


def test_the_proofs_can_be_asked_for_again(finished_run: Cluster):
    out = finished_run.sluice("audit", "verify", finished_run.run).stdout

    assert [line.split()[:2] for line in out.splitlines()] == [
        ["holds", str(number)] for number in range(1, 10)
    ]


def test_sql_prints_an_array_of_objects(finished_run: Cluster):
    query = "select step, status from learner_step order by step limit 2"

    out = finished_run.sluice("sql", query, "--json").stdout

    assert json.loads(out) == [{"step": 1, "status": "trained"}, {"step": 2, "status": "trained"}]


def test_sql_changes_nothing(finished_run: Cluster):
    hidden = "with gone as (delete from annotation returning 1) select * from gone"

    done = finished_run.sluice("sql", hidden, code=2)

    assert "read-only" in done.stderr
    assert finished_run.query("select count(*) as rows from annotation")[0]["rows"] > 0


def test_a_group_is_told_as_a_timeline(finished_run: Cluster):
    (group,) = finished_run.query(
        "select group_id, text from generation join batch_member using (run_id, group_id)"
        " order by step, position, generation_index limit 1"
    )
    asked = ("audit", "group", finished_run.run, group["group_id"])

    told = json.loads(finished_run.sluice(*asked, "--json").stdout)
    text = finished_run.sluice(*asked, "--text").stdout

    assert told["facts"]["state"] == "trained"
    events = [row["event"] for row in told["timeline"]]
    assert events[:4] == ["requested", "generated", "verified", "decided"]
    assert "trained" in events
    assert told["facts"]["answers"][0]["text"] == group["text"]
    assert repr(group["text"]) in text


def test_samples_drops_and_mixture_are_told(finished_run: Cluster):
    (row,) = finished_run.query(
        "select sample_key from prompt_group where state = 'trained' order by 1 limit 1"
    )

    def told(*asked: str) -> list[dict]:
        return json.loads(finished_run.sluice("audit", *asked, "--json").stdout)

    assert told("sample", finished_run.run, row["sample_key"])["timeline"]
    drops = {one["reason"] for one in told("drops", finished_run.run)}
    assert drops <= {"filtered:dynamic_sampling", "run_ended", "stale"}
    mixture = told("mixture", finished_run.run)
    assert {one["domain"] for one in mixture} == {"short", "long"}


def test_runs_and_status_say_that_the_run_has_ended(finished_run: Cluster):
    (listed,) = json.loads(finished_run.sluice("runs", "--json").stdout)
    status = json.loads(finished_run.sluice("status", "last", "--json").stdout)

    assert (listed["run_id"], listed["status"]) == (finished_run.run, "finished")
    assert (status["ended"], status["step"], status["processes"]) == ("finished", 6, [])


@pytest.mark.parametrize(
    "asked",
    [("audit", "verify", "nosuch"), ("status", "nosuch"), ("export", "nosuch", "--to", "x")],
    ids=lambda asked: asked[0],
)
def test_an_unknown_run_is_refused_in_one_line(asked: tuple[str, ...], finished_run: Cluster):
    done = finished_run.sluice(*asked, code=2)

    (line,) = done.stderr.splitlines()
    assert "nosuch" in line
    assert finished_run.run in line


def test_another_policy_is_tried_over_a_finished_runs_groups(finished_run: Cluster):
    def replayed(policy: str) -> dict[str, dict]:
        out = finished_run.sluice("replay", finished_run.run, "--policy", policy, "--json").stdout
        return {row["part"]: row for row in json.loads(out)}

    same, other = replayed(str(finished_run.config)), replayed("maxvar")

    (groups,) = finished_run.query(
        "select count(*) as n, count(*) filter (where outcome = 'admitted') as admitted"
        " from prompt_group where purpose = 'train' and verified_ok"
    )
    assert same["all"]["groups"] == other["all"]["groups"] == groups["n"]
    assert same["all"]["agreement"] == 1.0
    assert same["all"]["recorded_kept"] == groups["admitted"] / groups["n"]
    assert other["all"]["other_kept"] == 0.5
    assert {part for part in other if part.startswith("domain")} == {"domain long", "domain short"}
    shown = finished_run.sluice("replay", finished_run.run, "--policy", "maxvar").stdout
    assert "agreement" in shown.splitlines()[1]


def test_what_a_policy_would_decide_about_a_finished_run_is_told_answer_by_answer(
    finished_run: Cluster,
):
    out = finished_run.sluice(
        "policy", "simulate", "--policy", str(finished_run.config), "--run", finished_run.run
    ).stdout

    rows = [json.loads(line) for line in out.splitlines()]
    recorded = finished_run.query(
        "select group_id, generation_index as index, admitted, reward, advantage, weight, target, reason"
        " from annotation where not shadow"
    )
    by_answer = {(row["group_id"], row["index"]): row for row in rows}
    assert len(by_answer) == len(rows) == len(recorded)
    for row in recorded:
        told = by_answer[row["group_id"], row["index"]]
        assert told == {
            **row,
            "reward": row["reward"],
            "advantage": pytest.approx(row["advantage"], abs=1e-6),
        }
