"""Mixture: shares that sum to one, whole draws nearest to them, statistics per domain."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import BadConfiguration
from broker.messages import MixtureCounters
from workers.policies.mixers import History, Static, apportion, proportions
from workers.policies.statistics import DomainStatistics, slope


def a_history(rewards=((), (), ()), **changes: object) -> History:
    domains = tuple("abc"[: len(rewards)])
    even_D = np.full(len(domains), 1 / len(domains))
    fields = {
        "domains": domains,
        "prior_D": even_D,
        "current_D": even_D,
        "update_no": 1,
        "rewards": tuple(tuple(r) for r in rewards),
        "magnitudes": tuple(() for _ in domains),
        "rows_D": np.zeros(len(domains), dtype=np.int64),
    }
    return History(**(fields | changes))  # pyright: ignore[reportArgumentType]


def test_ten_draws_over_three_equal_domains_are_four_three_three():
    assert list(apportion(np.full(3, 1 / 3), 10)) == [4, 3, 3]


@given(st.lists(st.floats(0.01, 5), min_size=1, max_size=8), st.integers(0, 500))
def test_whole_draws_sum_up_and_miss_each_share_by_less_than_one(weights, total):
    shares_D = proportions(np.array(weights), "weights")

    counts_D = apportion(shares_D, total)

    assert counts_D.sum() == total
    assert (np.abs(counts_D - shares_D * total) < 1 + 1e-6).all()


@pytest.mark.parametrize(
    "shares", [[0.0, 0.0], [float("nan"), 1.0], [2.0, -1.0], [float("inf"), 1]]
)
def test_shares_that_cannot_be_normalised_are_refused(shares):
    with pytest.raises(BadConfiguration, match="expected finite shares"):
        proportions(np.array(shares), "shares")


def test_static_keeps_the_sources_shares_unless_told_others():
    prior_D = np.array([0.5, 0.25, 0.25])

    assert Static()(a_history(prior_D=prior_D)) is prior_D
    np.testing.assert_allclose(
        Static(shares={"a": 1, "b": 1, "c": 2})(a_history()), [0.25, 0.25, 0.5]
    )
    with pytest.raises(BadConfiguration, match="domains are"):
        Static(shares={"a": 1.0})(a_history())


@pytest.mark.parametrize(
    ("values", "expected"),
    [([0.2, 0.4, 0.5], 0.15), ([0, 1, 1, 1, 0], 0.0), ([0.7], 0.0), ([], 0.0)],
)
def test_slopes_are_as_worked_out_in_a13(values, expected):
    assert slope(values) == pytest.approx(expected, abs=1e-12)


def counters(**requested: int) -> MixtureCounters:
    return MixtureCounters(
        update_no=0, target={}, since_update={}, requested=requested, positions={}
    )


def test_requested_counts_are_those_of_the_newest_request_in_any_order_of_arrival():
    statistics = DomainStatistics(["a", "b"], window=5)

    statistics.saw_request(3, counters(a=2, b=1))
    statistics.saw_request(2, counters(a=1, b=1))

    assert statistics.state.request_seq == 3
    assert [d.requested for d in statistics.state.domains.values()] == [2, 1]


def test_a_window_gives_each_domain_one_mean_and_an_unseen_domain_none():
    statistics = DomainStatistics(["a", "b"], window=2)
    for outcome in (0.0, 0.5, 1.0):
        statistics.saw_scores("a", np.array([outcome, 1.0]))
        statistics.close_window({"a": 1.0}, {"a": 1})

    history = statistics.history(np.array([0.5, 0.5]), np.array([0.5, 0.5]), 3)

    assert history.rewards == ((0.75, 1.0), ())
    assert history.magnitudes == ((0.5, 0.5), ())
    assert list(history.rows_D) == [6, 0]


def test_rows_of_a_filtered_group_count_as_without_advantage():
    statistics = DomainStatistics(["a"], window=9)
    statistics.saw_scores("a", np.array([1.0, 0.0]))
    statistics.saw_scores("a", np.array([1.0, 1.0]))
    statistics.close_window({"a": 2.0}, {"a": 1})

    assert statistics.state.domains["a"].magnitudes == [0.5]
