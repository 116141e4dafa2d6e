"""Staleness in words, and the share of a step that must be fresh."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.staleness import excess, word
from learner.windows import Member, Rules, sweep
from tests.learning import VOCABULARY, a_group
from workers.dispatcher.groups import RETRIED


@pytest.mark.parametrize(
    ("staleness", "expected"), [(0, "fresh"), (1, "acceptable"), (3, "acceptable"), (4, "stale")]
)
def test_a_group_is_fresh_acceptable_or_stale_as_worked_out_in_c11(staleness, expected):
    assert word(staleness, 3) == expected


def test_a_group_of_a_version_to_come_is_an_error():
    with pytest.raises(ValueError, match="staleness -1: expected 0 or more"):
        word(-1, 3)


def members(*ages: int, version: int = 9, bundles: list[str] | None = None) -> list[Member]:
    found = []
    for number, age in enumerate(ages, start=1):
        bundle = bundles[number - 1] if bundles else f"b{number}"
        group = a_group(f"{number:08d}-0-0", version=version - age, bundle=bundle)
        found.append(Member(group.group.group_id, bundle, "math", number, group))
    return found


def swept(found: list[Member], share: float):
    rules = Rules(max_staleness=3, vocabulary=VOCABULARY, min_fresh_share=share)
    result = sweep(found, rules, version=9)
    return (
        [member.stream_seq for member, _ in result.kept],
        [(group.stream_seq, group.reason, group.staleness) for group in result.dropped],
    )


def test_without_a_share_every_acceptable_group_is_trained():
    assert swept(members(0, 1, 3, 4), 0.0) == ([1, 2, 3], [(4, "stale", 4)])


def test_the_oldest_groups_go_until_enough_of_the_step_is_fresh():
    assert swept(members(0, 1, 3, 2, 0), 0.5) == ([1, 2, 4, 5], [(3, "not_fresh", 3)])
    assert swept(members(1, 2), 0.5) == ([], [(1, "not_fresh", 1), (2, "not_fresh", 2)])


def test_a_bundle_goes_as_a_whole():
    found = members(0, 0, 1, 0, bundles=["a", "b", "c", "c"])

    kept, dropped = swept(found, 0.9)

    assert kept == [1, 2]
    assert [(seq, reason) for seq, reason, _ in dropped] == [(3, "not_fresh"), (4, "not_fresh")]


def test_a_group_that_was_not_fresh_enough_is_asked_for_again():
    assert {"stale", "not_fresh"} <= RETRIED


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4)), max_size=8),
    st.sampled_from([0.0, 0.25, 1 / 3, 0.5, 1.0]),
)
def test_what_is_left_has_the_share_and_nothing_fresh_or_needless_goes(bundles, share):
    gone = excess(bundles, share)

    left = [b for n, b in enumerate(bundles) if n not in gone]
    fresh = sum(groups for groups, age in left if age == 0)
    assert fresh >= share * sum(groups for groups, _ in left) - 1e-9
    assert all(bundles[n][1] > 0 for n in gone)
    if gone:
        last = min(gone, key=lambda n: (bundles[n][1], n))
        assert fresh < share * (sum(groups for groups, _ in left) + bundles[last][0])
