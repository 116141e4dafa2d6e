"""Workers that send garbage, send twice or late, and tell another time: groups fail, and the proofs hold."""

from collections.abc import Callable

from broker.bus import Bus
from broker.topology import H_GROUP, Log
from store.audit import CLAIMS
from tests.e2e.cluster import Cluster

STEPS = 24
AHEAD, BEHIND = "+30", "-30"
GARBAGE = ("nan", "version", "lengths", "foreign", "cut", "twice", "late", "again", "unasked")
SENT_AGAIN = ("twice", "again")
DISORDER = ("twice", "late", "cut", "again")
HOW = {
    "nan": ("dropped", "nonfinite"),
    "version": ("dropped", "unknown_version"),
    "lengths": ("failed", "logprobs has"),
    "foreign": ("failed", "to the request of"),
    "cut": ("failed", "not a msgpack envelope"),
}
"""How a group ends that suffered the mistake; after the others it ends like any."""
UNASKED = "009"
"""Ids of groups that nobody asked for begin so."""
REFUSED = "nobody asked for group"
RUN_ENDED = ("dropped", "run_ended")
OPTIONS = {
    "steps": STEPS,
    "warmup": 60,
    # Every good group counts, and a sample is not given up for the mistakes of its workers.
    "run_extra": "max_staleness = 2\nmax_attempts = 10\nno_progress_steps = 100",
    "extra": "[policy]\nadmit = []",
}


def mistakes(run: Cluster, role: str) -> dict[str, str]:
    """Mistake by the group that suffered it."""
    return {
        one["group_id"]: one["mistake"] for one in run.events(role) if one["event"] == "mistake"
    }


async def dead_groups(bus: Bus) -> set[str]:
    """Groups of which a copy was kept."""
    cursor = await bus.cursor(Log.DEAD, 0)
    found: set[str] = set()
    while batch := await cursor.read(500, 2.0):
        found |= {stored.headers[H_GROUP] for stored in batch}
    await cursor.close()
    return found


def test_garbage_disorder_and_wrong_clocks_cost_groups_and_nothing_else(
    start_run: Callable[..., Cluster],
):
    run = start_run("mistaken", **OPTIONS)
    run.start("rollout", mistaken=(AHEAD, ",".join(GARBAGE)))
    run.start("verifier", mistaken=(BEHIND, ",".join(DISORDER)))
    run.start("dispatcher,policy,recorder", "learner")
    run.wait_end(limit_s=200)

    assert run.status() == "finished"
    # What nobody asked for, the audit tells; and nothing else.
    against = run.proofs()
    assert against.keys() == {CLAIMS["one_end"]}, against
    ended = {
        row["group_id"]: (row["state"], row["drop_reason"])
        for row in run.query("select group_id, state, drop_reason from prompt_group")
    }
    generated, verified = mistakes(run, "rollout"), mistakes(run, "verifier")
    assert set(generated.values()) == set(GARBAGE)
    assert set(verified.values()) == set(DISORDER)
    unasked = [group for group in ended if group.startswith(UNASKED)]
    assert {ended[group][0] for group in unasked} == {"generated"}
    incidents = {
        (row["kind"], row["detail"]) for row in run.query("select kind, detail from incident")
    }
    refused = {("unasked_group", f"{REFUSED} {group}") for group in unasked}
    assert incidents & refused
    # A step of 50 ms outruns a group that is held back: there may be one for which nothing was left.
    assert incidents <= refused | run.empty_steps("stale", "unknown_version", "nonfinite")
    assert against[CLAIMS["one_end"]].startswith(f"{len(unasked) + 1} against it")

    seen = {mistake: [] for mistake in HOW}
    for group in generated.keys() | verified.keys():
        mistake = generated.get(group)
        # What is cut off nobody can look into, but a copy before it; other disorder changes nothing.
        if verified.get(group) == "cut" and mistake not in SENT_AGAIN:
            mistake = "cut"
        if mistake in HOW and ended[group] != RUN_ENDED:
            seen[mistake].append(ended[group])
    for mistake, (state, reason) in HOW.items():
        assert seen[mistake], mistake
        assert all(s == state and reason in r for s, r in seen[mistake]), (mistake, seen[mistake])
    assert {g for g, m in generated.items() if m in ("lengths", "cut", "foreign")} <= (
        run.with_bus(dead_groups)
    )
