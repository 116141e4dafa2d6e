"""Target, admission, reward, advantage: worked numbers of METHODS and its rules for awkward input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.policy_builders import a_batch, a_group
from workers.policies.admission import DynamicSampling, is_mixed
from workers.policies.advantages import DrGrpo, Grpo, grpo
from workers.policies.targets import Gold


def binary(successes: int, size: int) -> np.ndarray:
    return np.array([1.0] * successes + [0.0] * (size - successes))


@pytest.mark.parametrize(
    ("successes", "right", "wrong"),
    [(1, 1.789, -0.447), (2, 1.095, -0.730), (3, 0.730, -1.095), (4, 0.447, -1.789)],
)
def test_grpo_of_five_binary_rewards_is_as_worked_out_in_a1(successes, right, wrong):
    advantages_G = grpo(binary(successes, 5))

    np.testing.assert_allclose(advantages_G[:successes], right, atol=5e-4)
    np.testing.assert_allclose(advantages_G[successes:], wrong, atol=5e-4)


def test_mean_absolute_advantage_by_solved_answers_is_as_worked_out_in_a1():
    found = [np.abs(grpo(binary(c, 5))).mean() for c in range(6)]

    np.testing.assert_allclose(found, [0, 0.716, 0.876, 0.876, 0.716, 0], atol=5e-4)


@pytest.mark.parametrize(
    ("std", "right", "wrong"),
    [
        ("unbiased", 1.789, -0.447),
        ("tutorial", 1.789, -0.447),
        ("population", 2.0, -0.5),
        ("none", 0.8, -0.2),
    ],
)
def test_the_standard_deviation_options_are_as_worked_out_in_c1(std, right, wrong):
    advantages_G = grpo(binary(1, 5), std=std)

    np.testing.assert_allclose(advantages_G, [right] + [wrong] * 4, atol=5e-4)


def test_dr_grpo_centres_without_dividing():
    advantages_B = DrGrpo()(a_batch((1.0, 0.0, 0.0, 0.0, 0.0)))

    np.testing.assert_allclose(advantages_B, [0.8, -0.2, -0.2, -0.2, -0.2])


@settings(deadline=None)
@given(
    st.floats(-1e6, 1e6), st.integers(1, 16), st.sampled_from(["unbiased", "population", "none"])
)
def test_equal_rewards_and_single_answers_have_exactly_no_advantage(reward, size, std):
    assert (grpo(np.full(size, reward), std=std) == 0.0).all()


@settings(deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=1, max_size=6), max_size=5),
    st.randoms(use_true_random=False),
)
def test_advantages_follow_the_group_whatever_the_order_of_groups_and_rows(groups, random):
    rows = [list(range(len(scores))) for scores in groups]
    for permutation in rows:
        random.shuffle(permutation)
    order = list(range(len(groups)))
    random.shuffle(order)

    straight = a_batch(*groups)
    advantages_B = Grpo()(straight)
    shuffled = a_batch(*([groups[g][r] for r in rows[g]] for g in order))
    shuffled_B = Grpo()(shuffled)

    for place, g in enumerate(order):
        expected_G = advantages_B[straight.rows(g)][rows[g]]
        np.testing.assert_allclose(shuffled_B[shuffled.rows(place)], expected_G, atol=1e-12)


@pytest.mark.parametrize(
    ("solved", "graded", "kept"),
    [(0, 4, False), (2, 4, True), (4, 4, False), (1, 4, True), (0, 0, False), (1, 1, False)],
)
def test_dynamic_sampling_keeps_what_is_neither_solved_nor_missed_by_all(solved, graded, kept):
    assert is_mixed(solved, graded) is kept


def test_dynamic_sampling_looks_at_solved_answers_not_at_unequal_partial_scores():
    partial = a_group((0.5, 0.25, 0.0))

    assert not DynamicSampling()(partial)


def test_a_timeout_counts_neither_as_solved_nor_as_missed():
    group = a_group((1.0, None, 1.0))

    assert group.successes() == (2, 2)
    assert not DynamicSampling()(group)


def test_a_row_with_a_nan_logprob_counts_neither_as_solved_nor_as_missed():
    group = a_group((1.0, 0.0, 1.0), logprobs=[[-1.0], [float("nan")], [-1.0]])

    assert group.successes() == (2, 2)
    assert [group.exclusion(row) for row in range(3)] == ["", "nonfinite", ""]


def test_an_answer_without_tokens_is_excluded():
    group = a_group((1.0, 0.0), lengths=[3, 0])

    assert list(group.usable_G) == [True, False]
    assert group.exclusion(1) == "empty"


def test_a_gold_target_leaves_the_scores_and_names_its_source():
    group = a_group((1.0, 0.0))

    found = Gold()(group)

    assert (found.target, found.target_source) == ("2", "gold")
    np.testing.assert_array_equal(found.scores_G, [1.0, 0.0])
