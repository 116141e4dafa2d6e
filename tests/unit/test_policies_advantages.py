"""Further advantages and rewards: worked numbers B3, C2 to C5, C7, and what they must never do."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import BadConfiguration
from tests.policy_builders import a_batch, a_group
from workers.policies.advantages import grpo
from workers.policies.advantages_more import (
    BatchStd,
    MaxRl,
    ProcessOutcome,
    ReinforcePp,
    Rloo,
    leave_one_out,
    over_mean,
)
from workers.policies.batch import make_batch
from workers.policies.dbb import Dbb, standardised, update
from workers.policies.noise import NoiseControl, Pgbc, Pgfc, appeals_rate, audit, backward, forward
from workers.policies.program import Program
from workers.policies.rewards_shaping import Affine, Overlong, Process, overlong_penalty
from workers.policies.rewards_spurious import (
    Constant,
    Format,
    Incorrect,
    Inverted,
    Majority,
    Random,
)
from workers.policies.settings import PolicySettings

NOISY = (1.0, 0.0, 0.0, 1.0, 0.0)
EVERY_ADVANTAGE = [
    "grpo", "dr_grpo", "rloo", "maxrl", "reinforce_pp", "batch_std", "process_outcome", "dbb",
    {"name": "pgbc", "rho0": 0.1, "rho1": 0.2}, {"name": "pgfc", "rho0": 0.1, "rho1": 0.2},
    "noise_control", {"name": "pgbc_appeals", "share": 0.5}, {"name": "pgfc_appeals", "share": 0.5},
]  # fmt: skip


# --- without memory ---------------------------------------------------------------------------


def test_leave_one_out_is_as_worked_out_in_b3():
    np.testing.assert_allclose(leave_one_out(np.array([-0.4, -0.6])), [0.2, -0.2])


def test_rloo_compares_each_answer_with_the_others():
    np.testing.assert_allclose(Rloo()(a_batch((1.0, 0.0, 0.0))), [1.0, -0.5, -0.5])


def test_maxrl_counts_a_rare_success_more():
    np.testing.assert_allclose(MaxRl()(a_batch((1.0, 0.0, 0.0, 0.0))), [3.0, -1.0, -1.0, -1.0])
    assert not over_mean(np.zeros(4)).any()


def test_reinforce_pp_takes_the_window_as_its_baseline_even_for_single_answers():
    advantages_B = ReinforcePp()(a_batch((1.0,), (0.0,), (1.0, 0.0)))

    np.testing.assert_allclose(advantages_B, [0.866, -0.866, 0.866, -0.866], atol=1e-3)


def test_batch_std_scales_all_groups_alike():
    advantages_B = BatchStd()(a_batch((1.0, 0.0), (0.6, 0.4), (1.0, 1.0)))

    assert advantages_B[0] / advantages_B[2] == pytest.approx(5.0)
    assert advantages_B.std() == pytest.approx(1.0)
    assert not advantages_B[4:].any()


def test_process_and_outcome_are_normalised_before_they_are_mixed():
    group = a_group((1.0, 0.0, 0.0, 0.0))
    process = [0.5, 0.75, 0.25, 0.5]
    object.__setattr__(group, "components", tuple({"process": p} for p in process))
    batch = make_batch([group], [group.scores_G])

    found = ProcessOutcome(share=0.5)(batch)

    np.testing.assert_allclose(found, 0.5 * grpo(np.array(process)) + 0.5 * grpo(group.scores_G))


# --- DBB --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("solved", "p", "right", "wrong"),
    [(0, 0.0556, 4.123, -0.2425), (2, 0.18, 2.134, -0.4685), (8, 0.6404, 0.7494, -1.3343)],
)
def test_dbb_is_as_worked_out_in_c3(solved, p, right, wrong):
    # Three visits, one after the other, discount .5, 8 answers each.
    prior = (1.0, 1.0)
    for visit in (0, 2, 8):
        prior = update(prior, visit, 8, 0.5)
        estimate = prior[0] / sum(prior)
        if visit == solved:
            break

    assert estimate == pytest.approx(p, abs=1e-4)
    np.testing.assert_allclose(
        standardised(np.array([1.0, 0.0]), estimate), [right, wrong], atol=2e-3
    )


def test_dbb_has_a_signal_where_all_answers_agree_and_remembers_the_prompt():
    program = Program(PolicySettings(advantage="dbb"))
    memory = {}

    wrong = program.judge(a_group((0.0,) * 8, key="m:1:7"), memory)
    other = program.judge(a_group((0.0,) * 8, key="m:1:8", number=2), memory)
    again = program.judge(a_group((1.0, 1.0, *(0.0,) * 6), key="m:1:7", number=3), memory)
    rows = program.decide([wrong, other, again]).annotations

    assert [row.advantage for row in rows[0]] == pytest.approx([-0.2425] * 8, abs=1e-4)
    assert rows[0][0].advantage == rows[1][0].advantage
    assert rows[2][0].advantage == pytest.approx(2.134, abs=1e-3)
    assert rows[2][0].signals["dbb_p"] == pytest.approx(0.18)


@settings(deadline=None)
@given(st.integers(0, 8), st.floats(0, 1), st.integers(0, 6))
def test_dbb_never_divides_by_zero(solved, discount, visits):
    prior = (1.0, 1.0)
    for _ in range(visits + 1):
        prior = update(prior, solved, 8, discount)

    assert np.isfinite(standardised(np.array([1.0, 0.0]), prior[0] / sum(prior))).all()


def test_the_memory_of_dbb_survives_a_snapshot_as_json():
    memory = {}
    Dbb().observe(memory, a_group((1.0, 0.0)))

    assert json.loads(json.dumps(memory)) == memory


# --- noise ------------------------------------------------------------------------------------


def test_the_backward_correction_is_as_worked_out_in_c4():
    np.testing.assert_allclose(
        backward(np.array([1.0, 0.0]), 0.1, 0.2), [1.2857, -0.1429], atol=1e-4
    )

    corrected_B = Pgbc(rho0=0.1, rho1=0.2)(a_batch(NOISY))
    control_B = NoiseControl()(a_batch(NOISY))

    np.testing.assert_allclose(corrected_B[[0, 1]], [1.0714, -0.7143], atol=1e-4)
    np.testing.assert_allclose(control_B[[0, 1]], [0.75, -0.5])


def test_the_forward_correction_is_as_worked_out_in_c4():
    np.testing.assert_allclose(Pgfc(rho0=0.1, rho1=0.2)(a_batch(NOISY))[[0, 1]], [0.2, -0.8])


def test_the_forward_correction_averages_zero_over_right_and_minus_j_over_wrong_answers():
    rho0, rho1 = 0.1, 0.2
    for_one, for_zero = forward(np.array([1.0, 0.0]), rho1)

    assert (1 - rho1) * for_one + rho1 * for_zero == pytest.approx(0.0)
    assert rho0 * for_one + (1 - rho0) * for_zero == pytest.approx(-(1 - rho0 - rho1))


def test_inside_group_normalised_grpo_the_correction_does_nothing():
    raw = np.array(NOISY)

    np.testing.assert_allclose(grpo(backward(raw, 0.1, 0.2)), grpo(raw), atol=1e-5)


def test_the_audit_tells_a_rescaling_from_a_change_of_direction():
    batch = a_batch(NOISY, (1.0, 0.0))
    control_B = NoiseControl()(batch)

    rescaled = audit(Pgbc(rho0=0.1, rho1=0.2)(batch), control_B)
    unchanged = audit(control_B, control_B)
    forward_found = audit(Pgfc(rho0=0.1, rho1=0.2)(batch), control_B)

    assert rescaled["cosine"] == pytest.approx(1.0)
    assert rescaled["d_mean"] > 0
    assert (unchanged["d_mean"], unchanged["d_max"]) == (0.0, 0.0)
    assert forward_found["cosine"] < 0.99


def test_a_correction_that_corrects_nothing_is_refused_as_its_own_control():
    with pytest.raises(BadConfiguration, match=r"noise_control \(d_max 0\).*a rate above 0"):
        Program(PolicySettings(advantage="pgbc"))


@pytest.mark.parametrize("method", ["pgbc", "pgfc"])
def test_the_audit_of_a_correction_is_recorded_with_every_answer(method):
    program = Program(PolicySettings(advantage={"name": method, "rho0": 0.1, "rho1": 0.2}))

    (rows,) = program.decide([program.judge(a_group(NOISY), {})]).annotations

    control = [row.signals["noise_control"] for row in rows]
    apart = [abs(row.advantage - c) for row, c in zip(rows, control, strict=True)]
    assert control == pytest.approx([0.75, -0.5, -0.5, 0.75, -0.5])
    for row in rows:
        assert row.signals["audit_d_max"] == pytest.approx(max(apart))
        assert row.signals["audit_d_mean"] == pytest.approx(sum(apart) / 5)
    assert (rows[0].signals["audit_cosine"] > 0.999) == (method == "pgbc")


def test_rates_of_a_domain_apply_to_its_groups_alone():
    batch = make_batch(
        groups := [a_group(NOISY, domain="math"), a_group(NOISY, domain="logic", number=2)],
        [g.scores_G for g in groups],
    )

    found_B = Pgbc(domains={"logic": (0.1, 0.4)})(batch)

    assert found_B[0] == pytest.approx(0.75)
    assert found_B[5] == pytest.approx(1.5)


def test_appeals_estimate_the_missed_share_as_worked_out_in_c4():
    assert appeals_rate(3, 0.1, 70) == pytest.approx(0.3, abs=1e-5)


def test_a_verifier_that_says_too_little_is_refused():
    with pytest.raises(BadConfiguration, match=r"1 - rho0 - rho1 above 0\.05"):
        Program(PolicySettings(advantage={"name": "pgbc", "rho0": 0.5, "rho1": 0.46}))


# --- rewards ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "penalty"), [(80, 0), (81, -0.05), (90, -0.5), (100, -1), (101, -1)]
)
def test_the_overlong_penalty_is_as_worked_out_in_c2(length, penalty):
    assert overlong_penalty(np.array([length]), 100, 20)[0] == pytest.approx(penalty)


def test_the_overlong_penalty_of_daps_own_lengths_is_as_worked_out_in_c2():
    assert overlong_penalty(np.array([18432]), 20480, 4096)[0] == pytest.approx(-0.5)


def test_overlong_and_affine_rewards_are_applied_in_the_order_of_the_table():
    program = Program(
        PolicySettings(
            reward=(
                "verified",
                {"name": "affine", "scale": 2.0, "shift": -1.0},
                {"name": "overlong", "max_tokens": 100, "buffer": 20},
            )
        )
    )

    judged = program.judge(a_group((1.0, 0.0), lengths=[90, 50]), {})

    np.testing.assert_allclose(judged.rewards_G, [0.5, -1.0])


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.5, [0.75, 0.375, 0.125, 0.25]), (0.9, [0.55, 0.675, 0.225, 0.45])],
)
def test_mixing_process_and_outcome_is_as_worked_out_in_c5(share, expected):
    group = a_group((1.0, 0.0, 0.0, 0.0))
    process = (0.5, 0.75, 0.25, 0.5)
    object.__setattr__(group, "components", tuple({"process": p} for p in process))

    np.testing.assert_allclose(Process(share=share)(group, group.scores_G), expected)


@pytest.mark.parametrize(("share", "flipped"), [(0.79, 0.0), (0.8, 1.0), (0.9, 1.0)])
def test_from_the_share_of_c5_on_a_wrong_answer_that_can_outrank_a_right_one_is_flagged(
    share, flipped
):
    group = a_group((1.0, 0.0, 0.0, 0.0))
    process = ({"process": 0.5}, {"process": 0.75}, {"process": 0.25}, {})
    object.__setattr__(group, "components", process)
    program = Program(PolicySettings(reward=("verified", {"name": "process", "share": share})))

    (rows,) = program.decide([program.judge(group, {})]).annotations

    assert [row.signals["process_missing"] for row in rows] == [0, 0, 0, 1]
    assert {row.signals["process_outranks"] for row in rows} == {flipped}


@pytest.mark.parametrize(
    "scores", [(1.0, 1.0, 1.0, 1.0), (0.0, 0.0, 0.0, 0.0), (1.0, 1.0, 1.0, None)]
)
def test_nothing_outranks_a_right_answer_where_right_or_wrong_ones_are_missing(scores):
    group = a_group(scores)
    object.__setattr__(group, "components", tuple({"process": p} for p in (0.0, 0.5, 0.9, 1.0)))

    assert Process(share=1.0).signals(group)["process_outranks"].tolist() == [0.0] * 4


def test_an_answer_that_cannot_be_trained_on_is_not_outranked():
    group = a_group((1.0, 1.0, 0.0, 0.0), lengths=[0, 9, 9, 9])
    object.__setattr__(group, "components", tuple({"process": p} for p in (0.0, 0.9, 0.5, 0.1)))

    assert not group.usable_G[0]
    assert Process(share=0.8).signals(group)["process_outranks"].tolist() == [0.0] * 4


def test_dynamic_sampling_is_not_fooled_by_a_shaped_reward():
    program = Program(
        PolicySettings(
            admit=("dynamic_sampling",),
            reward=("verified", {"name": "overlong", "max_tokens": 100, "buffer": 90}),
        )
    )

    judged = program.judge(a_group((0.0, 0.0), lengths=[20, 90]), {})

    assert judged.reason == "filtered:dynamic_sampling"


SPREAD = a_group((1.0, 0.0, 0.0, 0.0, None), classes=[0, 1, 1, None, 0])


@pytest.mark.parametrize(
    ("arm", "expected"),
    [
        (Incorrect(), [0, 1, 1, 0]),
        (Inverted(), [0, 1, 1, 1]),
        (Format(), [1, 1, 1, 0]),
        (Majority(), [1, 0, 0, 0]),
        (Constant(), [1, 1, 1, 1]),
    ],
)
def test_spurious_arms_replace_the_verdict_as_listed_in_c7(arm, expected):
    found = arm(SPREAD, SPREAD.scores_G)

    np.testing.assert_array_equal(found[:4], expected)
    assert np.isnan(found[4])


def test_random_rewards_are_the_same_on_every_replay_and_as_frequent_as_asked():
    arm = Random(gamma=0.25, seed=1)
    groups = [a_group((0.0,) * 8, number=n, key=f"m:1:{n}") for n in range(1, 200)]
    drawn = np.concatenate([arm(g, g.scores_G) for g in groups])

    assert drawn.mean() == pytest.approx(0.25, abs=0.04)
    np.testing.assert_array_equal(arm(groups[0], groups[0].scores_G), drawn[:8])
    assert not np.array_equal(Random(gamma=0.25, seed=2)(groups[0], groups[0].scores_G), drawn[:8])


def test_a_constant_reward_has_no_advantage_at_all():
    program = Program(PolicySettings(reward=("constant",)))

    judged = program.judge(a_group((1.0, 0.0)), {})

    assert {row.advantage for row in program.decide([judged]).annotations[0]} == {0.0}
    assert Affine(scale=0.0)(SPREAD, np.ones(5)).tolist() == [0.0] * 5
    assert Overlong(max_tokens=9, buffer=9, factor=0.0)(SPREAD, np.ones(5)).tolist() == [1.0] * 5


SCORES = st.lists(st.sampled_from([0.0, 0.3, 1.0, None]), min_size=1, max_size=7)


@settings(max_examples=60, deadline=None)
@given(st.lists(SCORES, max_size=5), st.sampled_from(EVERY_ADVANTAGE))
def test_every_advantage_is_finite_and_silent_about_unusable_rows(windows, advantage):
    program = Program(PolicySettings(advantage=advantage))
    memory = {}
    judged = [program.judge(a_group(s, number=n + 1), memory) for n, s in enumerate(windows)]
    judged = [j for j in judged if not j.reason]

    for j, rows in zip(judged, program.decide(judged).annotations, strict=True):
        assert np.isfinite([row.advantage for row in rows]).all()
        assert all(
            row.advantage == 0 for row, ok in zip(rows, j.group.usable_G, strict=True) if not ok
        )
