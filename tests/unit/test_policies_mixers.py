"""Mixture: shares that sum to one, whole draws nearest to them, statistics per domain."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import BadConfiguration
from broker.messages import MixtureCounters
from tests.builders import a_key
from workers.policies.mixers import History, Static, apportion, proportions
from workers.policies.mixers_adaptive import (
    DumpUcb,
    RewardGap,
    Tscl,
    softmax,
    ucb_values,
    with_published_floor,
)
from workers.policies.statistics import DomainStatistics, slope


def a_history(rewards=((), (), ()), **changes: object) -> History:
    domains = tuple("abcdef"[: len(rewards)])
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


@settings(deadline=None)
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
    return MixtureCounters(update_no=0, target={}, owed={}, requested=requested, positions={})


def test_requested_counts_are_those_of_the_newest_request_in_any_order_of_arrival():
    statistics = DomainStatistics(["a", "b"], window=5)

    statistics.saw_request(a_key("g3", domain="b", request_seq=3), counters(a=2, b=1))
    statistics.saw_request(a_key("g2", domain="a", request_seq=2), counters(a=1, b=1))

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


# --- adaptive mixers --------------------------------------------------------------------------


def adapted(mixer, rewards=((), (), ()), **changes):
    return mixer(a_history(rewards, **changes))


def test_reward_gap_is_as_worked_out_in_a11():
    found = adapted(RewardGap(floor=0.0), ((0.8,), (0.3,), (0.9,)))

    np.testing.assert_allclose(found, [0.2814, 0.4640, 0.2546], atol=1e-4)


def test_the_corrected_floor_binds_where_the_published_one_does_not_in_a11():
    rewards = ((1.0,), (0.0,), (1.0,))

    corrected = adapted(RewardGap(temperature=0.1), rewards)
    published = adapted(RewardGap(temperature=0.1, floor_as="published"), rewards)

    np.testing.assert_allclose(corrected, [0.05, 0.8999, 0.05], atol=1e-4)
    np.testing.assert_allclose(published, [0.0455, 0.9091, 0.0455], atol=1e-4)


def test_dump_ucb_is_as_worked_out_in_a12():
    values = ucb_values(np.array([0.5, 0.2, 0.1]), np.array([100, 10, 50]), 1.0)

    np.testing.assert_allclose(softmax(values, 1.0), [0.3151, 0.4445, 0.2404], atol=1e-4)
    np.testing.assert_allclose(softmax(values, 0.1), [0.0310, 0.9669, 0.0021], atol=1e-4)


def test_dump_ucb_as_in_the_snapshot_follows_the_reward_as_a12_says():
    mixer = DumpUcb(reads="reward", c=0.0, floor=0.0)

    found = adapted(mixer, ((0.8,), (0.3,), (0.9,)), magnitudes=((0.0,),) * 3)

    np.testing.assert_allclose(found, [0.3688, 0.2237, 0.4076], atol=1e-4)


def test_the_snapshots_mixers_count_answers_and_take_an_unseen_domain_for_unsolved():
    statistics = DomainStatistics(["a", "b"], window=4)
    for scores in ([1.0, 1.0, 1.0], [0.0, 0.0]):
        statistics.saw_scores("a", np.array(scores))
    statistics.close_window({}, {})
    even_D = np.array([0.5, 0.5])
    published = RewardGap(by="row", unseen="zero", floor=0.0, window=4)

    found = published(statistics.history(even_D, even_D, 1))

    # The newest four answers of "a" are half right; "b", never asked, counts 0.
    np.testing.assert_allclose(found, softmax(np.array([0.0, 0.5]), 1.0))


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [(1.0, [0.3322, 0.3389, 0.3289]), (0.01, [0.1142, 0.8438, 0.0420])],
)
def test_tscl_is_as_worked_out_in_a13(temperature, expected):
    # Straight lines with slopes .01, -.03 and 0.
    rewards = ((0.1, 0.11, 0.12), (0.9, 0.87, 0.84), (0.5, 0.5, 0.5))

    found = adapted(Tscl(temperature=temperature, floor=0.0), rewards)

    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_the_published_floor_of_tscl_ends_below_itself_as_a13_says():
    found = with_published_floor(np.array([0.1142, 0.8438, 0.0420]), 0.05)

    np.testing.assert_allclose(found, [0.1133, 0.8371, 0.0496], atol=1e-4)


def test_signed_tscl_counts_rising_domains_only():
    rewards = ((0.1, 0.2, 0.3), (0.9, 0.5, 0.1), (0.5, 0.5, 0.5))

    found = adapted(Tscl(signed=True, floor=0.0), rewards)

    assert found[0] > 0.99
    assert found[1] == pytest.approx(found[2])


LEARNABLE = {
    "rewards": ((1.0,) * 5, (0.0,) * 5, (0.2, 0.3, 0.4, 0.5, 0.6)),
    "magnitudes": ((0.0,) * 5, (0.0,) * 5, (0.8,) * 5),
    "rows_D": np.full(3, 100),
}


@pytest.mark.parametrize("mixer", [DumpUcb(temperature=0.1), Tscl()])
def test_of_a_mastered_an_impossible_and_a_learnable_domain_the_last_is_favoured(mixer):
    found = adapted(mixer, **LEARNABLE)

    assert found[2] > 0.8
    assert (found >= mixer.floor).all()


def test_reward_gap_favours_the_impossible_domain_as_its_formula_says():
    found = adapted(RewardGap(temperature=0.1), **LEARNABLE)

    assert found.argmax() == 1


def test_a_domain_without_answers_keeps_its_share():
    found = adapted(RewardGap(floor=0.0), ((0.8,), (), (0.2,)))

    assert found[1] == pytest.approx(1 / 3)
    assert found[2] > found[0]


def test_shares_move_only_after_the_warm_up_and_every_so_many_updates():
    mixer = RewardGap(warmup=4, every=2)
    rewards = ((1.0,), (0.0,), (1.0,))

    moved = [n for n in range(9) if adapted(mixer, rewards, update_no=n)[1] != pytest.approx(1 / 3)]

    assert moved == [4, 6, 8]


@pytest.mark.parametrize("mixer", [DumpUcb, Tscl])
def test_single_answers_of_which_scores_alone_are_known_are_no_ground_for_more(
    mixer: type[DumpUcb | Tscl],
):
    with pytest.raises(ValueError, match="expected reads = 'reward'"):
        mixer(by="row")

    assert mixer(by="row", reads="reward").by == "row"


def test_a_floor_that_leaves_nothing_is_refused():
    with pytest.raises(BadConfiguration, match="expected below 1/3"):
        adapted(RewardGap(floor=0.4))


@settings(deadline=None)
@given(
    st.lists(st.lists(st.floats(0, 1), max_size=4), min_size=1, max_size=6),
    st.sampled_from([RewardGap(temperature=0.01), DumpUcb(temperature=0.01), Tscl()]),
    st.integers(0, 3),
)
def test_proportions_sum_to_one_and_respect_the_floor(rewards, mixer, update_no):
    found = adapted(
        mixer,
        rewards,
        update_no=update_no,
        magnitudes=tuple(tuple(r) for r in rewards),
        rows_D=np.array([8 * len(r) for r in rewards]),
    )

    assert found.sum() == pytest.approx(1.0)
    assert (found >= min(mixer.floor, 1 / len(rewards)) - 1e-12).all()
