"""The sweep is the guarantee: nothing older than the bound is planned, and every group ends."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.arrays import logprob_array, token_array
from broker.bus import Stored
from broker.codec import encode
from broker.messages import Sampling, VersionSpan
from broker.topology import Log, headers, subject
from learner.intake import WindowBuffer, WindowGap
from learner.windows import Member, Rules, Window, make_plan, sweep
from tests.builders import an_annotation
from tests.learning import VOCABULARY, a_group, bytes_array

RULES = Rules(max_staleness=2, vocabulary=VOCABULARY)


def a_member(group, sequence=1) -> Member:
    key = group.group
    return Member(key.group_id, key.bundle, key.domain, sequence, group)


def spans_of(versions: list[int]) -> tuple[VersionSpan, ...]:
    return tuple(VersionSpan(version=v, first=i, end=i + 1) for i, v in enumerate(versions))


@given(
    st.lists(
        st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=4), min_size=1, max_size=3),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 12),
    st.integers(0, 4),
    st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_no_planned_token_is_older_than_the_bound_and_every_group_is_planned_or_dropped(
    groups, version, eta, masked
):
    # groups[g][k][t] is the version of token t of answer k of group g.
    members = []
    for index, answers in enumerate(groups):
        annotations = tuple(
            an_annotation(k, weight=0.0 if masked[index] else 1.0) for k in range(len(answers))
        )
        group = a_group(
            f"{index + 1:08d}-0-0",
            rewards=(1.0,) * len(answers),
            spans=tuple(spans_of(tokens) for tokens in answers),
            annotations=annotations,
        )
        members.append(a_member(group, 10 + index))

    swept = sweep(members, Rules(eta, VOCABULARY), version=version)
    plan = make_plan(Window(3, tuple(members), 99), swept, version=version, writer_id="w", at_us=1)

    ended = [g.group_id for g in (*plan.groups, *plan.dropped)]
    assert sorted(ended) == [m.group_id for m in members]
    by_sequence = {10 + i: [v for a in answers for v in a] for i, answers in enumerate(groups)}
    for planned in plan.groups:
        versions = by_sequence[planned.stream_seq]
        assert min(version - v for v in versions) >= 0
        assert max(version - v for v in versions) == planned.staleness <= eta
    for dropped in plan.dropped:
        versions = by_sequence[dropped.stream_seq]
        if dropped.reason == "stale":
            assert dropped.staleness == version - min(versions) > eta
        else:
            assert dropped.reason == "unknown_version"
            assert max(versions) > version
    assert (plan.step, plan.cursor, plan.version) == (3, 99, version)


def test_a_group_one_version_too_old_never_reaches_the_optimizer():
    fresh, stale = (
        a_member(a_group("00000001-0-0", version=8)),
        a_member(a_group("00000002-0-0", version=7)),
    )

    swept = sweep([fresh, stale], RULES, version=10)

    assert swept.kept == ((fresh, 2),)
    assert [(d.group_id, d.reason, d.staleness) for d in swept.dropped] == [
        ("00000002-0-0", "stale", 3)
    ]


def test_a_bundle_is_dropped_whole():
    members = [
        a_member(a_group("00000001-0-0", version=9, bundle="b1")),
        a_member(a_group("00000002-0-0", version=5, bundle="b1")),
    ]

    swept = sweep(members, RULES, version=10)

    assert swept.kept == ()
    assert [d.reason for d in swept.dropped] == ["bundle", "stale"]


def changed(group, **generation_changes):
    first, *rest = group.generations
    return group.model_copy(
        update={"generations": (first.model_copy(update=generation_changes), *rest)}
    )


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda g: changed(g, token_ids=token_array([3] * 20 + [VOCABULARY])), "malformed"),
        (lambda g: changed(g, token_ids=token_array([-1])), "malformed"),
        (lambda g: changed(g, index=5), "malformed"),
        (lambda g: changed(g, logprobs=logprob_array([np.nan] * 3)), "nonfinite"),
        (lambda g: g.model_copy(update={"annotations": ()}), "malformed"),
        (lambda g: g.model_copy(update={"request": None}), "malformed"),
        (
            lambda g: g.model_copy(
                update={"annotations": (
                    an_annotation(0, token_weights=bytes_array([1.0])), an_annotation(1)
                )}
            ),
            "malformed",
        ),
        (
            lambda g: g.model_copy(
                update={"request": g.request.model_copy(
                    update={"sampling": Sampling(temperature=1.0, max_tokens=4, top_p=0.9)}
                )}
            ),
            "sampling",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_is_dropped_with_a_reason(make, reason):
    group = a_group("00000001-0-0")
    assert sweep([a_member(group)], RULES, version=0).dropped == ()

    swept = sweep([a_member(make(group))], RULES, version=0)

    assert swept.kept == ()
    assert [d.reason for d in swept.dropped] == [reason]


def test_a_nonfinite_logprob_does_no_harm_in_a_masked_row():
    group = changed(a_group("00000001-0-0"), logprobs=logprob_array([np.nan] * 3))
    masked = tuple(an_annotation(i, weight=float(i)) for i in range(2))

    swept = sweep([a_member(group.model_copy(update={"annotations": masked}))], RULES, version=0)

    assert len(swept.kept) == 1


def test_groups_that_ended_with_the_run_are_not_trained_after_it_is_resumed():
    old, new = (
        a_member(a_group("00000001-0-0", verified_seq=40)),
        a_member(a_group("00000002-0-0", verified_seq=41)),
    )

    swept = sweep([old, new], replace(RULES, ended_verified=40), version=0)

    assert [m.group_id for m, _ in swept.kept] == ["00000002-0-0"]
    assert [d.reason for d in swept.dropped] == ["run_ended"]


# --- gathering --------------------------------------------------------------------------------


def stored(event, sequence: int, data: bytes | None = None) -> Stored:
    return Stored(
        log=Log.ANNOTATED,
        sequence=sequence,
        subject=subject("r", event),
        headers=headers(event),
        data=encode(event) if data is None else data,
        stored_at_us=1,
    )


def test_a_window_is_complete_with_its_last_group_and_drops_pass_by():
    buffer = WindowBuffer(1)
    first, second = (a_group(f"0000000{i}-0-0", window_size=2, window_index=i - 1) for i in (1, 2))
    dropped = a_group(
        "00000003-0-0", outcome="dropped", reason="filtered:x", window=None, window_size=None
    )

    assert buffer.add(stored(dropped, 4)) is None
    assert buffer.add(stored(first, 5)) is None
    window = buffer.add(stored(second, 6))

    assert window is not None
    assert [m.group_id for m in window.members] == ["00000001-0-0", "00000002-0-0"]
    assert (window.number, window.cursor, buffer.next_window) == (1, 6, 2)


def test_windows_planned_in_an_earlier_life_are_passed_by_and_a_gap_is_an_error():
    buffer = WindowBuffer(2)

    assert buffer.add(stored(a_group("00000001-0-0", window=1), 1)) is None
    assert buffer.add(stored(a_group("00000002-0-0", window=2), 2)) is not None
    with pytest.raises(WindowGap, match="window 4; expected 3"):
        buffer.add(stored(a_group("00000004-0-0", window=4), 3))


def test_a_group_that_cannot_be_read_keeps_its_place_and_is_dropped():
    buffer = WindowBuffer(1)
    good, bad = (a_group(f"0000000{i}-0-0", window_size=2) for i in (1, 2))

    assert buffer.add(stored(bad, 1, b"garbage")) is None
    window = buffer.add(stored(good, 2))

    assert window is not None
    swept = sweep(window.members, RULES, version=0)
    assert [m.group_id for m, _ in swept.kept] == ["00000001-0-0"]
    assert [(d.group_id, d.reason) for d in swept.dropped] == [("00000002-0-0", "undecodable")]


def test_a_window_without_one_readable_group_ends_when_the_log_is_read():
    buffer = WindowBuffer(1)
    assert buffer.add(stored(a_group("00000001-0-0", window_size=2), 1, b"garbage")) is None

    window = buffer.log_is_read()

    assert window is not None
    assert [m.group for m in window.members] == [None]
    assert buffer.log_is_read() is None
