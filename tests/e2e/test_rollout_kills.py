"""A rollout worker that dies with groups in its hands: another answers these, each once."""

import signal
from collections.abc import Callable
from datetime import UTC, datetime

from tests.e2e.cluster import LIGHT, Cluster

STEPS, ANSWERED = 6, 3


def test_groups_of_a_dead_rollout_worker_are_answered_by_another(
    start_run: Callable[..., Cluster],
):
    run = start_run("rollouts", steps=STEPS, eval_items=0)
    run.start(LIGHT, "learner")
    # It holds all groups there are; the last one that it answered is stored and not acknowledged.
    run.start("rollout", dying=f"after:group_generated:{ANSWERED}")
    first = run.processes["rollout"].pid
    assert run.wait_exit("rollout", limit_s=120) == -signal.SIGKILL
    died_at = datetime.now(UTC)

    run.start("rollout#2")
    second = run.processes["rollout#2"].pid
    run.wait_end()

    assert run.status() == "finished"
    assert run.proofs() == {}
    by_process = run.query(
        "select split_part(worker, ':', 2)::int as pid, count(distinct group_id) as groups,"
        " count(distinct group_id) filter (where requested_at < %(died_at)s) as asked_before"
        " from generation join prompt_group using (run_id, group_id) group by 1",
        died_at=died_at,
    )
    answered = {row["pid"]: row for row in by_process}
    assert answered.keys() == {first, second}
    assert answered[first]["groups"] >= ANSWERED
    assert sum(row["groups"] for row in by_process) >= STEPS * 4
    assert answered[second]["asked_before"] > 0, "the dead worker held nothing"
    assert run.query("select kind, detail from incident") == []
