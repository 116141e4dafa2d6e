"""The window machine: every group decided exactly once, windows exact, the same after any restart."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import SluiceError
from tests.policy_builders import a_group_event, an_arrival, told
from workers.policies.decisions import Closed, Decision, Ended, Record, Recorded, Rules, Snapshot
from workers.policies.order import Arrival
from workers.policies.program import Program
from workers.policies.settings import PolicySettings
from workers.policies.windows import WindowMachine

SHARES = {"math": 1.0, "logic": 2.0}
RULES = Rules(groups_per_step=2, refill_limit=8)
MIXED, SOLVED = (1.0, 0.0), (1.0, 1.0)


def a_machine(
    rules: Rules = RULES,
    recorded: Recorded | None = None,
    snapshot: Snapshot | None = None,
    **table: object,
) -> WindowMachine:
    table.setdefault("admit", ["dynamic_sampling"])
    program = Program(PolicySettings.model_validate(table))
    return WindowMachine(program, rules, SHARES, recorded, snapshot)


def feed(machine: WindowMachine, arrivals: Sequence[Arrival]) -> list[Decision]:
    return [decision for arrival in arrivals for decision in machine.feed(arrival)]


def ids(decision: Decision) -> list[str]:
    if isinstance(decision, Ended):
        return [decision.arrival.event.group.group_id]
    return [arrival.event.group.group_id for arrival, _ in decision.members]


def record_of(decisions: Sequence[Decision], known: Recorded | None = None) -> Recorded:
    """What the logs hold once these decisions are published."""
    known = known or Recorded()
    groups, cuts = dict(known.groups), dict(known.cuts)
    for decision in decisions:
        if isinstance(decision, Closed):
            cuts[decision.window] = decision.cut
            for arrival, _ in decision.members:
                key = arrival.event.group
                groups[key.group_id] = Record(
                    key.request_seq, arrival.sequence, "admitted", "admitted"
                )
        else:
            key = decision.arrival.event.group
            groups[key.group_id] = Record(
                key.request_seq, decision.arrival.sequence, decision.outcome, decision.reason
            )
    return Recorded(groups=groups, cuts=cuts)


# --- examples ---------------------------------------------------------------------------------


def test_a_window_closes_with_the_group_that_fills_it_and_names_its_sequence():
    machine = a_machine()

    decisions = feed(
        machine,
        [
            an_arrival(3, a_group_event(1, MIXED)),
            an_arrival(5, a_group_event(2, SOLVED)),
            an_arrival(9, a_group_event(3, MIXED)),
        ],
    )

    dropped, closed = decisions
    assert isinstance(dropped, Ended)
    assert (dropped.outcome, dropped.reason) == ("dropped", "filtered:dynamic_sampling")
    assert [row.weight for row in dropped.annotations] == [0.0, 0.0]
    assert isinstance(closed, Closed)
    assert (closed.window, closed.cut) == (1, 9)
    assert ids(closed) == ["00000001-0-0", "00000003-0-0"]


def test_a_failed_group_ends_at_once_as_failed():
    (decision,) = a_machine().feed(an_arrival(1, a_group_event(1, failed=True)))

    assert isinstance(decision, Ended)
    assert (decision.outcome, decision.reason) == ("failed", "engine")


def test_a_malformed_group_ends_as_failed_and_says_how():
    event = a_group_event(1, MIXED)
    twice = event.model_copy(update={"generations": event.generations[:1] * 2})

    (decision,) = a_machine().feed(an_arrival(1, twice))

    assert isinstance(decision, Ended)
    assert decision.outcome == "failed"
    assert "generation indices (0, 0)" in decision.reason


def test_at_the_refill_limit_a_window_closes_with_what_it_has():
    machine = a_machine(Rules(groups_per_step=4, refill_limit=3))

    decisions = feed(
        machine, [an_arrival(n, a_group_event(n, MIXED if n == 1 else SOLVED)) for n in (1, 2, 3)]
    )

    assert isinstance(decisions[-1], Closed)
    assert ids(decisions[-1]) == ["00000001-0-0"]


def test_beyond_the_refill_limit_an_empty_window_waits_for_its_first_group():
    machine = a_machine(Rules(groups_per_step=4, refill_limit=2))

    dropped = feed(machine, [an_arrival(n, a_group_event(n, SOLVED)) for n in (1, 2, 3)])
    (closed,) = machine.feed(an_arrival(4, a_group_event(4, MIXED)))

    assert len(dropped) == 3
    assert isinstance(closed, Closed)
    assert closed.cut == 4


def test_draining_closes_the_open_window_and_drops_what_comes_later():
    machine = a_machine()
    feed(machine, [an_arrival(1, a_group_event(1, MIXED))])

    (closed,) = machine.drain()
    later = machine.feed(an_arrival(2, a_group_event(2, MIXED)))

    assert isinstance(closed, Closed)
    assert (closed.cut, ids(closed)) == (1, ["00000001-0-0"])
    assert [(d.outcome, d.reason) for d in later if isinstance(d, Ended)] == [
        ("dropped", "run_ended")
    ]
    assert machine.drain() == []


def test_after_a_restart_a_drain_that_left_no_window_is_still_in_force():
    known = Recorded(groups={"00000001-0-0": Record(1, 1, "dropped", "run_ended")})
    machine = a_machine(recorded=known)

    decisions = feed(machine, [an_arrival(n, a_group_event(n, MIXED)) for n in (1, 2)])

    assert [d.reason for d in decisions if isinstance(d, Ended)] == ["run_ended", "run_ended"]


def test_a_second_copy_of_a_group_is_ignored():
    machine = a_machine()
    machine.feed(an_arrival(1, a_group_event(1, MIXED)))

    assert machine.feed(an_arrival(2, a_group_event(1, MIXED))) == []
    assert machine.open_groups == 1


def test_a_second_copy_of_a_group_is_not_counted_again():
    arrivals = [an_arrival(n, a_group_event(g, MIXED)) for n, g in ((1, 1), (2, 1), (3, 2))]

    decisions = feed(a_machine(), arrivals)

    (closed,) = [d for d in decisions if isinstance(d, Closed)]
    assert sum(share.generated for share in closed.shares) == len(closed.members) == 2


def test_after_a_restart_a_second_copy_of_a_decided_group_is_ignored():
    known = Recorded(groups={"00000001-0-0": Record(1, 1, "dropped", "filtered:x")})
    machine = a_machine(recorded=known)

    assert machine.feed(an_arrival(2, a_group_event(1, MIXED))) == []
    assert machine.open_groups == 0


def test_output_for_a_group_below_the_floor_is_ignored():
    machine = a_machine()
    machine.raise_floor(7)

    assert machine.feed(an_arrival(1, a_group_event(7, MIXED))) == []
    assert machine.open_groups == 0


def test_one_failed_member_ends_its_bundle_whenever_the_others_come():
    machine = a_machine()
    member = {"bundle": "b", "bundle_size": 3}

    first = machine.feed(an_arrival(1, a_group_event(1, MIXED, **member)))
    second = machine.feed(an_arrival(2, a_group_event(2, failed=True, **member)))
    third = machine.feed(an_arrival(3, a_group_event(3, MIXED, **member)))

    assert first == []
    assert [(d.outcome, d.reason) for d in [*second, *third] if isinstance(d, Ended)] == [
        ("dropped", "bundle"), ("failed", "engine"), ("dropped", "bundle"),
    ]  # fmt: skip


def test_a_dropped_member_takes_its_bundle_along():
    machine = a_machine()
    member = {"bundle": "b", "bundle_size": 2}

    decisions = feed(
        machine,
        [
            an_arrival(1, a_group_event(2, SOLVED, **member)),
            an_arrival(2, a_group_event(1, MIXED, **member)),
        ],
    )

    assert [(ids(d), d.reason) for d in decisions if isinstance(d, Ended)] == [
        (["00000001-0-0"], "bundle"),
        (["00000002-0-0"], "filtered:dynamic_sampling"),
    ]


def test_a_cohort_is_decided_in_request_order_when_its_last_group_has_come():
    machine = a_machine(Rules(groups_per_step=3, refill_limit=30, deterministic=True))
    cohort = {"cohort": (1, 3)}

    early = feed(
        machine,
        [
            an_arrival(1, a_group_event(3, SOLVED, **cohort)),
            an_arrival(2, a_group_event(1, MIXED, **cohort)),
        ],
    )
    (dropped,) = machine.feed(an_arrival(4, a_group_event(2, MIXED, **cohort)))
    (closed,) = machine.feed(an_arrival(5, a_group_event(4, MIXED, cohort=(2, 1))))

    assert early == []
    assert ids(dropped) == ["00000003-0-0"]
    assert isinstance(closed, Closed)
    assert closed.cut == 5
    assert ids(closed) == ["00000001-0-0", "00000002-0-0", "00000004-0-0"]


def test_a_cut_on_record_is_kept_even_if_the_window_was_not_due():
    arrivals = [an_arrival(n, a_group_event(n, MIXED)) for n in (1, 2)]
    before = a_machine()
    decisions = [*before.feed(arrivals[0]), *before.drain(), *before.feed(arrivals[1])]

    again = a_machine(recorded=record_of(decisions))

    assert told(feed(again, arrivals)) == told(decisions)
    assert again.drained


def test_the_open_groups_of_an_ended_run_are_no_part_of_its_resumption():
    resumed = Recorded(ended_requests=2, ended_verified=1)
    machine = a_machine(recorded=resumed)

    decisions = feed(
        machine,
        [
            an_arrival(1, a_group_event(1, MIXED)),  # verified, never decided
            an_arrival(2, a_group_event(2, MIXED)),  # came after the end
            an_arrival(3, a_group_event(3, MIXED)),
            an_arrival(4, a_group_event(4, MIXED)),
        ],
    )

    (closed,) = decisions
    assert isinstance(closed, Closed)
    assert ids(closed) == ["00000003-0-0", "00000004-0-0"]
    assert {s.domain: s.generated for s in closed.shares}["math"] == 3


def test_a_log_that_lost_the_messages_of_a_recorded_window_is_refused():
    machine = a_machine(recorded=Recorded(cuts={1: 5}))

    with pytest.raises(SluiceError, match="window 1 was cut at VERIFIED 5"):
        machine.feed(an_arrival(9, a_group_event(9, MIXED)))


def test_the_mixture_counts_are_those_of_the_log_up_to_the_cut():
    machine = a_machine()
    requested = {"math": 3, "logic": 1}

    decisions = feed(
        machine,
        [
            an_arrival(1, a_group_event(4, MIXED, requested=requested)),
            an_arrival(2, a_group_event(2, SOLVED)),
            an_arrival(3, a_group_event(1, failed=True)),
            an_arrival(
                4, a_group_event(3, MIXED, domain="logic", requested={"math": 2, "logic": 1})
            ),
        ],
    )

    closed = decisions[-1]
    assert isinstance(closed, Closed)
    assert closed.request_seq == 4
    assert [(s.domain, s.requested, s.generated, s.admitted) for s in closed.shares] == [
        ("math", 3, 2, 1), ("logic", 1, 1, 1),
    ]  # fmt: skip
    assert [round(s.target, 4) for s in closed.shares] == [0.3333, 0.6667]
    assert closed.shares[0].reward_mean == 0.75


# --- properties -------------------------------------------------------------------------------

SCORES = st.lists(st.sampled_from([0.0, 1.0, None]), min_size=1, max_size=4)


@st.composite
def logs(draw: st.DrawFn, *, bundles: bool = True) -> list[Arrival]:
    """Groups in any order of arrival, some failed, some in bundles of two."""
    count = draw(st.integers(0, 14))
    bundle_size = draw(st.sampled_from([1, 2])) if bundles else 1
    order = draw(st.permutations(list(range(1, count * bundle_size + 1))))
    arrivals: list[Arrival] = []
    for sequence, number in enumerate(order, start=1):
        event = a_group_event(
            number,
            draw(SCORES),
            domain="math" if number % 3 else "logic",
            bundle=f"b{(number - 1) // bundle_size}",
            bundle_size=bundle_size,
            failed=draw(st.integers(0, 9)) == 0,
        )
        arrivals.append(an_arrival(2 * sequence, event))
    return arrivals


@settings(max_examples=80, deadline=None)
@given(logs(), st.integers(1, 3), st.integers(0, 6))
def test_every_group_is_decided_exactly_once_and_windows_are_exact(arrivals, pairs, refill):
    rules = Rules(groups_per_step=2 * pairs, refill_limit=2 * pairs + refill)
    machine = a_machine(rules)

    decisions = feed(machine, arrivals)
    drained = machine.drain()

    decided = [group_id for decision in [*decisions, *drained] for group_id in ids(decision)]
    assert sorted(decided) == sorted(a.event.group.group_id for a in arrivals)
    windows = [d for d in [*decisions, *drained] if isinstance(d, Closed)]
    assert [w.window for w in windows] == list(range(1, len(windows) + 1))
    assert all(1 <= len(w.members) <= rules.groups_per_step for w in windows)
    cuts = [w.cut for w in windows]
    assert cuts == sorted(set(cuts))
    for window in windows:
        assert max(arrival.sequence for arrival, _ in window.members) <= window.cut


@settings(max_examples=80, deadline=None)
@given(logs(), st.data())
def test_a_restart_after_any_prefix_and_any_loss_decides_as_if_undisturbed(arrivals, data):
    rules = Rules(groups_per_step=4, refill_limit=9, snapshot_every=data.draw(st.integers(1, 3)))
    drain_at = data.draw(st.integers(0, len(arrivals)))
    undisturbed = a_machine(rules)
    expected = feed(undisturbed, arrivals[:drain_at])
    expected += undisturbed.drain()
    expected += feed(undisturbed, arrivals[drain_at:])

    # Die after any number of arrivals; of what was decided then, any prefix had been published.
    died_at = data.draw(st.integers(0, len(arrivals)))
    first = a_machine(rules)
    before = feed(first, arrivals[: min(died_at, drain_at)])
    if died_at >= drain_at:
        before += first.drain()
        before += feed(first, arrivals[drain_at:died_at])
    published = before[: data.draw(st.integers(0, len(before)))]
    recorded = record_of(published)
    snapshots = [d.snapshot for d in published if isinstance(d, Closed) and d.snapshot]
    # The announcement of the newest snapshot may have been lost as well.
    if snapshots and data.draw(st.booleans()):
        snapshots.pop()
    snapshot = Snapshot.model_validate_json(snapshots[-1]) if snapshots else None
    second = a_machine(rules, recorded, snapshot)
    again: list[Decision] = []
    held = set(snapshot.pending) if snapshot else set()
    again += feed(second, [a for a in arrivals if a.sequence in held])
    rest = [a for a in arrivals if a.sequence > second.position]
    for arrival in rest:
        if arrival.sequence > 2 * drain_at and not second.drained:
            again += second.drain()
        again += second.feed(arrival)
    if not second.drained:
        again += second.drain()

    fresh = [d for d in again if ids(d)[0] not in recorded.groups]
    assert told([*published, *fresh]) == told(expected)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_cohorts_give_the_same_decisions_in_any_order_of_arrival(data):
    rules = Rules(groups_per_step=3, refill_limit=12, deterministic=True)
    first = [a_group_event(n, data.draw(SCORES), cohort=(1, 3)) for n in (1, 2, 3)]
    second = [a_group_event(n, data.draw(SCORES), cohort=(2, 2)) for n in (4, 5)]
    shuffled = [*data.draw(st.permutations(first)), *data.draw(st.permutations(second))]

    straight = feed(
        a_machine(rules), [an_arrival(n, e) for n, e in enumerate([*first, *second], 1)]
    )
    other = feed(a_machine(rules), [an_arrival(n, e) for n, e in enumerate(shuffled, 1)])

    assert [ids(d) for d in straight] == [ids(d) for d in other]
    assert [d.cut for d in straight if isinstance(d, Closed)] == [
        d.cut for d in other if isinstance(d, Closed)
    ]
