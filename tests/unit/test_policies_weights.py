"""Selectors and reweighters: worked numbers A2 to A9, and what holds for every window."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.arrays import unpack
from broker.errors import BadConfiguration
from tests.policy_builders import a_batch, a_group
from workers.policies.advantages import Grpo
from workers.policies.batch import Batch, make_batch
from workers.policies.combine import build_weight
from workers.policies.program import Program
from workers.policies.reweighters import band_weights, power_weights, softmax_weights
from workers.policies.scorers import TokenProbability
from workers.policies.selectors import adaptive_k, highest, max_variance, share_of
from workers.policies.settings import PolicySettings
from workers.policies.weights import Weights

BAND = {"scorer": "group_solve_rate", "actuator": "threshold_band"}
VARIANCE = {"scorer": "reward", "actuator": "max_variance"}
TOP_K = {"scorer": "token_efficiency", "actuator": "group_top_k", "k": 3}
TOP = {"scorer": "advantage_magnitude", "actuator": "top_fraction"}
BLEND = {"scorer": "token_prob", "actuator": "token_blend"}
POWER = {"scorer": "advantage_magnitude", "actuator": "power"}
SOFT = {"scorer": "advantage_magnitude", "actuator": "softmax"}
QUANTILE = {"scorer": "reward", "actuator": "quantile_band"}
SELECTORS = [BAND, VARIANCE, TOP_K, TOP]
REWEIGHTERS = [POWER, SOFT, QUANTILE]


def weigh(spec: dict[str, object], batch: Batch) -> Weights:
    return build_weight(spec).method(batch, Grpo()(batch))


def kept(spec: dict[str, object], batch: Batch) -> list[int]:
    return np.flatnonzero(weigh(spec, batch).rows_B).tolist()


def binary(solved: int, size: int) -> tuple[float, ...]:
    return (1.0,) * solved + (0.0,) * (size - solved)


def a_lengthy_batch(scores: tuple[float, ...], lengths: list[int], rewards=None) -> Batch:
    group = a_group(scores, lengths=lengths)
    return make_batch([group], [np.array(rewards if rewards is not None else scores)])


@pytest.mark.parametrize(
    ("size", "solved"),
    [(5, {2, 3}), (4, {1, 2, 3}), (8, {2, 3, 4, 5, 6}), (10, {3, 4, 5, 6, 7}), (1, set())],
)
def test_the_band_keeps_the_solved_counts_of_a2(size, solved):
    found = {c for c in range(size + 1) if kept(BAND, a_batch(binary(c, size)))}

    assert found == solved


def test_an_inclusive_band_keeps_its_limits():
    assert kept(BAND | {"inclusive": True}, a_batch(binary(1, 5))) == [0, 1, 2, 3, 4]
    assert kept(BAND | {"low": 0.0, "high": 1.0}, a_batch(binary(1, 5), binary(5, 5))) == [
        0,
        1,
        2,
        3,
        4,
    ]


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1, 0, 0, 0, 0], [0, 4]),
        ([1, 1, 0, 0, 0], [1, 2]),
        ([1, 1, 1, 0, 0], [2, 3]),
        ([0, 0, 0, 0, 0], [3, 4]),
        ([0.1, 0.9, 0.5, 0.4, 1], [0, 4]),
    ],
)
def test_max_variance_keeps_the_rows_of_a3(rewards, expected):
    kept_G = max_variance(np.array(rewards, dtype=float), 0.5)

    assert np.flatnonzero(kept_G).tolist() == expected


def test_max_variance_of_a3_has_the_variance_worked_out():
    rewards_G = np.array([0.1, 0.9, 0.5, 0.4, 1])

    assert rewards_G[max_variance(rewards_G, 0.5)].var() == pytest.approx(0.2025)


@pytest.mark.parametrize(("size", "count"), [(5, 2), (7, 4), (3, 2), (1, 1), (0, 0)])
def test_shares_round_halves_to_even_as_in_a3(size, count):
    assert share_of(size, 0.5) == count


@pytest.mark.parametrize(("solved", "net"), [(1, 1.342), (2, 0.365), (3, -0.365), (4, -1.342)])
def test_kept_advantages_of_the_whole_group_have_the_net_push_of_a3(solved, net):
    batch = a_batch(binary(solved, 5))
    weights = weigh(VARIANCE | {"renormalise": "group"}, batch)

    assert weights.advantages_B is None
    assert (weights.rows_B * Grpo()(batch)).sum() == pytest.approx(net, abs=1e-3)


def test_pods_recomputes_the_advantages_on_what_it_keeps():
    weights = weigh(VARIANCE, a_batch(binary(1, 5)))

    assert weights.advantages_B is not None
    np.testing.assert_allclose(weights.advantages_B, [0.7071, 0, 0, 0, -0.7071], atol=2e-4)


LENGTHS = [10, 40, 5, 20, 20]


def test_gfpo_keeps_the_rows_of_a4():
    batch = a_lengthy_batch((1, 1, 0, 0, 1), LENGTHS)

    assert kept(TOP_K, batch) == [0, 1, 4]


def test_gfpo_by_brevity_keeps_the_rows_and_advantages_of_a4():
    batch = a_lengthy_batch((1, 1, 0, 0, 1), LENGTHS)
    weights = weigh(TOP_K | {"scorer": "brevity"}, batch)

    assert np.flatnonzero(weights.rows_B).tolist() == [0, 2, 3]
    assert weights.advantages_B is not None
    np.testing.assert_allclose(weights.advantages_B, [1.414, 0, -0.707, -0.707, 0], atol=1e-3)


def test_negative_rewards_turn_efficiency_round_as_a4_warns():
    batch = a_lengthy_batch((0, 0, 0, 0, 1), LENGTHS, rewards=[-1, -1, -1, -1, 1])

    assert kept(TOP_K, batch) == [1, 3, 4]


@pytest.mark.parametrize(("solved", "net"), [(1, 0.894), (2, 1.461), (3, 2.191), (4, 1.342)])
def test_gfpo_with_the_groups_advantages_pushes_up_only_as_in_a4(solved, net):
    batch = a_batch(binary(solved, 5))
    weights = weigh(TOP_K | {"renormalise": "group"}, batch)

    assert (weights.rows_B * Grpo()(batch)).sum() == pytest.approx(net, abs=1e-3)


def test_gfpo_keeping_only_right_answers_has_no_signal_as_published():
    weights = weigh(TOP_K, a_batch(binary(3, 5)))

    assert weights.advantages_B is not None
    assert (weights.advantages_B == 0).all()


def test_adaptive_gfpo_keeps_more_of_hard_groups_once_it_knows_what_is_hard():
    means = [n / 100 for n in range(100)]

    found = [adaptive_k(mean, means) for mean in (0.0, 0.2, 0.3, 0.6, 0.8, 1.0)]

    assert found == [8, 8, 8, 6, 4, 4]
    assert adaptive_k(1.0, means[:63]) == 8


def test_adaptive_gfpo_remembers_the_groups_of_earlier_windows():
    spec = TOP_K | {"k": "adaptive"}
    hard = [(1.0,) + (0.0,) * 9] * 40
    easy = [(1.0,) * 9 + (0.0,)] * 40
    memory: dict[str, object] = {}

    kept_first = weigh(spec, replace(a_batch(*hard), memory=memory)).rows_B.sum()
    kept_later = weigh(spec, replace(a_batch(*easy), memory=memory)).rows_B.sum()

    assert kept_first == 40 * 8
    # The easy ones, with the hard ones known, are the upper half: its first quarter's limit is theirs.
    assert kept_later == 40 * 6
    assert json.loads(json.dumps(memory)) == memory


@pytest.mark.parametrize("k", [0, -1, "many"])
def test_a_k_that_keeps_nothing_is_refused(k):
    with pytest.raises(BadConfiguration, match="k"):
        build_weight(TOP_K | {"k": k})


def test_a_small_group_is_kept_whole_by_gfpo():
    assert kept(TOP_K, a_batch((1, 0, 0))) == [0, 1, 2]


def test_top_fraction_keeps_the_rows_of_a5():
    scores = np.array([0, 0, 0, 0.9, 0.9, 0.5])

    assert np.flatnonzero(highest(scores, share_of(6, 0.5))).tolist() == [3, 4, 5]
    assert share_of(5, 0.5) == 2


ENTROPIES = ([0.1, 0.3], [0.5, 0.7], [0.9, np.nan])


def a_measured_window():
    """One group whose answers have an entropy per token; the last one's is not finite."""
    group = a_group((1.0, 0.0, 0.0), lengths=[2, 2, 2])
    signals = tuple({"entropy": np.array(e, np.float32)} for e in ENTROPIES)
    return replace(group, signals=signals)


@pytest.mark.parametrize("actuator", ["softmax", "power", "quantile_band", "top_fraction"])
def test_a_row_without_a_score_is_left_out_and_poisons_no_other(actuator):
    table = {"scorer": "mean_signal", "signal": "entropy", "actuator": actuator}
    program = Program(PolicySettings(weight=table), frozenset({"entropy"}))

    (rows,) = program.decide([program.judge(a_measured_window(), {})]).annotations

    assert (rows[2].admitted, rows[2].weight, rows[2].reason) == (False, 0.0, "nonfinite")
    assert all(np.isfinite(row.weight) for row in rows)
    assert sum(row.weight for row in rows[:2]) == pytest.approx(1 if "top" in actuator else 2)
    assert rows[0].signals["mean_signal"] == pytest.approx(0.2)


def test_tokens_can_be_weighed_by_what_the_engine_measured_of_them():
    table = {"scorer": "token_signal", "signal": "entropy", "actuator": "token_blend", "alpha": 1.0}
    program = Program(PolicySettings(weight=table), frozenset({"entropy"}))

    (rows,) = program.decide([program.judge(a_measured_window(), {})]).annotations

    # .1 .3 .5 .7 over their mean of .4; the third row has no weights.
    weights = [unpack(row.token_weights).tolist() for row in rows[:2] if row.token_weights]
    assert weights == [pytest.approx([0.25, 0.75]), pytest.approx([1.25, 1.75])]
    assert rows[2].token_weights is None


def test_a_signal_that_the_run_does_not_ask_the_engine_for_is_refused():
    table = {"scorer": "mean_signal", "signal": "entropy", "actuator": "softmax"}

    with pytest.raises(BadConfiguration, match=r"needs entropy, .* named by rollout\.signals"):
        Program(PolicySettings(weight=table))


def test_ties_go_to_the_lower_row():
    assert kept(TOP, a_batch(binary(0, 4))) == [0, 1]


def test_token_weights_are_as_worked_out_in_a6():
    one = a_group((1.0,), logprobs=[np.log([0.1, 0.9]).tolist()])
    two = a_group((1.0, 0.0), logprobs=[np.log([0.2, 0.8]).tolist(), np.log([0.5]).tolist()])

    first = weigh(BLEND, make_batch([one], [one.scores_G])).tokens
    second = weigh(BLEND, make_batch([two], [two.scores_G])).tokens

    assert first is not None
    assert second is not None
    np.testing.assert_allclose(first[0], [0.7333, 1.2667], atol=1e-4)
    np.testing.assert_allclose(np.concatenate(second), [0.8, 1.2, 1.0], atol=1e-6)


def test_certain_tokens_all_weigh_one():
    group = a_group((1.0, 0.0), logprobs=[[0.0, 0.0], [0.0]])

    tokens = weigh(BLEND, make_batch([group], [group.scores_G])).tokens

    assert tokens is not None
    np.testing.assert_allclose(np.concatenate(tokens), 1.0)


def test_power_weights_are_as_worked_out_in_a7():
    found = power_weights(np.array([0.0, 1.0, 4.0]), 0.5, 1e-8)

    np.testing.assert_allclose(found, [1e-4, 1.0, 1.9999], atol=1e-4)


def test_softmax_weights_are_as_worked_out_in_a8():
    found = softmax_weights(np.array([0.0, 1.0, 2.0]), 1.0)

    np.testing.assert_allclose(found, [0.2701, 0.7342, 1.9957], atol=1e-4)


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([0, 0.5, 0.5, 1], [0.667, 1.333, 1.333, 0.667]),
        ([0, 0, 1, 1], [1, 1, 1, 1]),
        ([0, 0, 0, 1], [1.143, 1.143, 1.143, 0.571]),
        ([0.3], [1]),
    ],
)
def test_quantile_band_weights_are_as_worked_out_in_a9(rewards, expected):
    np.testing.assert_allclose(
        band_weights(np.array(rewards), 0.25, 0.75, 2.0), expected, atol=1e-3
    )


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"scorer": "token_prob", "actuator": "softmax"}, "scores each token"),
        ({"scorer": "group_solve_rate", "actuator": "group_top_k"}, "scores each group"),
        ({"scorer": "reward", "actuator": "token_blend"}, "acts on scores of each token"),
        ({"scorer": "reward"}, "a scorer and an actuator"),
        ({"scorer": "rewards", "actuator": "softmax"}, "policy.weight.scorer 'rewards'"),
        (
            {"scorer": "reward", "actuator": "softmax", "k": 3},
            "policy.weight.actuator 'softmax': k",
        ),
        ({"scorer": "group_solve_rate", "actuator": "threshold_band", "low": 0.9}, "low < high"),
    ],
)
def test_a_pair_that_does_not_fit_is_refused_with_the_reason(spec, reason):
    with pytest.raises(BadConfiguration, match=reason):
        build_weight(spec)


GROUPS = st.lists(
    st.lists(st.sampled_from([0.0, 0.5, 1.0, None]), min_size=1, max_size=6), max_size=5
)


def a_window(groups: list[list[float | None]]) -> Batch:
    made = [a_group(scores, number=n + 1) for n, scores in enumerate(groups)]
    return make_batch(made, [g.scores_G for g in made])


@settings(max_examples=40, deadline=None)
@given(GROUPS, st.sampled_from(SELECTORS))
def test_selectors_only_ever_keep_usable_rows_once(groups, spec):
    batch = a_window(groups)

    rows_B = weigh(spec, batch).rows_B

    assert set(rows_B.tolist()) <= {0.0, 1.0}
    assert not rows_B[~batch.usable_B].any()


@settings(max_examples=40, deadline=None)
@given(GROUPS, st.sampled_from(REWEIGHTERS))
def test_reweighters_average_one_over_the_usable_rows(groups, spec):
    batch = a_window(groups)

    rows_B = weigh(spec, batch).rows_B

    assert (rows_B >= 0).all()
    assert not rows_B[~batch.usable_B].any()
    if batch.usable_B.any():
        assert rows_B[batch.usable_B].mean() == pytest.approx(1.0)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.floats(-9, 0), max_size=5), min_size=2, max_size=6))
def test_token_weights_average_one_over_the_usable_tokens(logprobs):
    group = a_group((1.0,) * len(logprobs), logprobs=logprobs)
    batch = make_batch([group], [group.scores_G])

    weights = weigh(BLEND, batch)

    assert weights.tokens is not None
    usable = [w for w, keep in zip(weights.tokens, batch.usable_B, strict=True) if keep]
    if usable:
        assert np.concatenate(usable).mean() == pytest.approx(1.0)


@pytest.mark.parametrize("beside", [0.0, np.nan])
def test_a_probability_is_one_at_most_whatever_else_the_window_holds(beside: float):
    group = a_group((1.0, 0.0), lengths=[2, 2])
    given = (np.array([0.25, -1.0], np.float32), np.array([beside, -2.0], np.float32))
    batch = make_batch([replace(group, logprobs=given)], [np.array([1.0, 0.0])])

    first, second = TokenProbability()(batch, np.zeros(2))

    assert first.tolist() == [1.0, np.exp(np.float32(-1.0))]
    assert second[1] == np.exp(np.float32(-2.0))
