"""Pacing and mixture: the bound holds in every schedule, shares follow their target draw by draw."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import BadConfiguration
from workers.dispatcher.mixture import after_draw, in_order, next_domain
from workers.dispatcher.pacing import room


def draws(target: dict[str, float], count: int) -> list[str]:
    owed: dict[str, float] = {}
    found = []
    for _ in range(count):
        domain = next_domain(target, owed)
        owed = after_draw(target, owed, domain)
        found.append(domain)
    return found


def test_ten_draws_of_three_equal_shares_are_4_3_3():
    found = Counter(draws({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, 10))

    assert found == {"a": 4, "b": 3, "c": 3}


def test_ties_go_to_the_earlier_domain():
    assert draws({"b": 0.5, "a": 0.5}, 4) == ["b", "a", "b", "a"]


@given(weights=st.lists(st.integers(1, 1000), min_size=1, max_size=6), count=st.integers(1, 200))
def test_realised_counts_stay_within_one_step_of_the_target(weights: list[int], count: int):
    target = {str(i): weight / sum(weights) for i, weight in enumerate(weights)}

    found = Counter(draws(target, count))

    for domain, share in target.items():
        assert found[domain] < share * count + 1
        # Several domains may fall behind at once, each by less than one draw per other domain.
        assert found[domain] > share * count - len(weights)


def test_a_domain_without_share_is_never_drawn():
    assert set(draws({"a": 0.0, "b": 1.0}, 20)) == {"b"}


def test_others_fill_the_place_of_an_exhausted_domain():
    assert next_domain({"a": 0.9, "b": 0.1}, {"a": 5.0, "b": -5.0}, available=["b"]) == "b"


def test_targets_follow_the_configured_order_and_must_sum_to_one():
    assert list(in_order({"b": 0.25, "a": 0.75}, ["a", "b", "c"]).items()) == [
        ("a", 0.75), ("b", 0.25), ("c", 0.0)
    ]  # fmt: skip
    with pytest.raises(BadConfiguration, match="sum to 1"):
        in_order({"a": 0.5}, ["a"])
    with pytest.raises(BadConfiguration, match="expected shares of a"):
        in_order({"a": 0.5, "x": 0.5}, ["a"])


@given(
    pace=st.integers(0, 4),
    bundles_per_step=st.integers(1, 8),
    steps=st.integers(1, 10),
    schedule=st.lists(st.sampled_from(["request", "drop", "step"]), max_size=200),
)
def test_no_schedule_has_more_under_way_than_pace_and_remaining_steps_allow(
    pace: int, bundles_per_step: int, steps: int, schedule: list[str]
):
    outstanding = done = 0
    for what in schedule:
        free = room(
            outstanding=outstanding,
            pace=pace,
            bundles_per_step=bundles_per_step,
            steps_left=steps - done,
        )
        if what == "request":
            outstanding += free
        elif what == "drop":
            outstanding = max(outstanding - 1, 0)
        elif outstanding >= bundles_per_step:
            outstanding -= bundles_per_step
            done += 1

        assert 0 <= outstanding <= (pace + 1) * bundles_per_step
        if what == "request":
            assert outstanding <= max(steps - done, 0) * bundles_per_step or free == 0


def test_with_pace_zero_exactly_one_steps_worth_is_under_way():
    assert room(outstanding=0, pace=0, bundles_per_step=16, steps_left=9) == 16
    assert room(outstanding=5, pace=0, bundles_per_step=16, steps_left=9) == 11
    assert room(outstanding=16, pace=0, bundles_per_step=16, steps_left=9) == 0
