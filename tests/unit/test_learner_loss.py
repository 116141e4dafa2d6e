"""The clipped surrogate and the denominators on worked examples, masked and extreme tokens."""

import numpy as np
import pytest
import torch

from learner.denominators import DENOMINATORS
from learner.losses.base import Tokens
from learner.losses.ppo_clip import ppo_clip
from tests.learning import a_row


def tokens_of(logprobs, rollout, advantages, kept=None) -> Tokens:
    size = len(logprobs)
    return Tokens(
        logprobs_N=torch.tensor(logprobs, dtype=torch.float64, requires_grad=True),
        old_logprobs_N=torch.tensor(logprobs, dtype=torch.float64),
        rollout_logprobs_N=torch.tensor(rollout, dtype=torch.float64),
        advantages_N=torch.tensor(advantages, dtype=torch.float64),
        kept_N=torch.tensor([True] * size if kept is None else kept),
        ages_N=torch.zeros(size, dtype=torch.float64),
        rows_N=torch.zeros(size, dtype=torch.int64),
        rows=1,
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "surrogate", "high"),
    [
        (1.25, 1.0, 1.25, 0.28),
        (1.3, 1.0, 1.28, 0.28),
        (1.3, 1.0, 1.2, 0.2),
        (0.7, -1.0, -0.8, 0.28),
        (1.5, -1.0, -1.5, 0.28),
    ],
)
def test_ex_c2_clip_higher(ratio, advantage, surrogate, high):
    tokens = tokens_of([np.log(ratio)], [0.0], [advantage])

    found = ppo_clip(tokens, clip_low=0.2, clip_high=high)

    assert -found.losses_N.item() == pytest.approx(surrogate, abs=1e-12)
    assert bool(found.clipped_N) == (surrogate != pytest.approx(ratio * advantage))


def reduce(losses_per_row, rows, denominator):
    scales = DENOMINATORS[denominator](rows)
    return sum(
        scale * (row.weights_T() * losses).sum()
        for scale, row, losses in zip(scales, rows, losses_per_row, strict=True)
    )


@pytest.mark.parametrize(
    ("denominator", "expected"), [("all_tokens", 0.75), ("kept_tokens", 1.0), ("sequences", 3.0)]
)
def test_ex_a0_only_the_second_of_two_rows_is_kept(denominator, expected):
    rows = [a_row(2, weight=0.0), a_row(6)]

    assert reduce([np.ones(2), np.ones(6)], rows, denominator) == pytest.approx(expected)


@pytest.mark.parametrize(("denominator", "expected"), [("seq_mean", 0.5), ("all_tokens", 0.25)])
def test_ex_c2_agg_sequence_mean_against_token_mean(denominator, expected):
    rows = [a_row(2), a_row(6)]

    assert reduce([np.ones(2), np.zeros(6)], rows, denominator) == pytest.approx(expected)


def test_fixed_divides_by_the_most_tokens_an_answer_may_have():
    rows = [a_row(2, max_tokens=10), a_row(6, max_tokens=10)]

    assert reduce([np.ones(2), np.ones(6)], rows, "fixed") == pytest.approx(8 / 20)


def test_d4_token_mean_is_over_the_step_not_over_micro_batches():
    rows = [a_row(10), a_row(1000)]

    found = reduce([np.full(10, 1.0), np.full(1000, 2.0)], rows, "all_tokens")

    assert found == pytest.approx(1.990, abs=1e-3)


@pytest.mark.parametrize("denominator", sorted(DENOMINATORS))
def test_empty_and_fully_masked_steps_do_not_divide_by_zero(denominator):
    rows = [a_row(0), a_row(3, weight=0.0)]

    assert np.isfinite(DENOMINATORS[denominator](rows)).all()
    assert DENOMINATORS[denominator]([]).shape == (0,)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_d10_a_masked_position_never_reaches_the_gradient(advantage):
    tokens = tokens_of(
        [-1.0, -2.0, 0.0], [-1.0, -2.0, -200.0], [advantage] * 3, [True, True, False]
    )

    losses = ppo_clip(tokens, clip_low=0.2, clip_high=0.28).losses_N
    (losses.sum() / 2).backward()

    assert losses.sum().item() / 2 == pytest.approx(-advantage)
    assert tokens.logprobs_N.grad is not None
    assert tokens.logprobs_N.grad.tolist() == pytest.approx([-advantage / 2, -advantage / 2, 0.0])


@pytest.mark.parametrize("rollout", [float("nan"), float("-inf"), float("inf")])
def test_a_masked_position_may_hold_anything(rollout):
    tokens = tokens_of([-1.0, -2.0], [-1.0, rollout], [1.0, 1.0], [True, False])

    losses = ppo_clip(tokens, clip_low=0.2, clip_high=0.28).losses_N
    losses.sum().backward()

    assert tokens.logprobs_N.grad is not None
    assert tokens.logprobs_N.grad.tolist() == [-1.0, 0.0]


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_kept_ratio_beyond_float_range_stays_finite(advantage):
    tokens = tokens_of([0.0], [-2000.0], [advantage])

    losses = ppo_clip(tokens, clip_low=0.2, clip_high=0.28).losses_N
    losses.sum().backward()

    assert np.isfinite(losses.item())
    assert tokens.logprobs_N.grad is not None
    assert np.isfinite(tokens.logprobs_N.grad.item())
