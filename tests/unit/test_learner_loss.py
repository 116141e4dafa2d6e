"""Losses and their reduction against an independent float64 reference, and the worked examples."""

import threading

import numpy as np
import pytest
import torch

from learner.denominators import DENOMINATORS
from learner.losses import LOSSES
from learner.losses.base import Tokens
from learner.losses.ppo_clip import ppo_clip
from learner.settings import LearnerSettings
from learner.trainer import Trainer
from tests.learning import a_model, a_row, ragged_rows


def tokens_of(logprobs, rollout, advantages, kept=None) -> Tokens:
    size = len(logprobs)
    return Tokens(
        logprobs_N=torch.tensor(logprobs, dtype=torch.float64, requires_grad=True),
        rollout_logprobs_N=torch.tensor(rollout, dtype=torch.float64),
        advantages_N=torch.tensor(advantages, dtype=torch.float64),
        kept_N=torch.tensor([True] * size if kept is None else kept),
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


# --- the whole step, against a reference that shares no code with it -----------------------------


def reference(model, rows, denominator, low, high):
    """Loss and gradients in float64, one row at a time, no tricks."""
    model = model.double()
    model.zero_grad()
    total = torch.zeros((), dtype=torch.float64)
    tokens = sum(len(row.answer_ids_T) for row in rows)
    kept = sum(len(row.answer_ids_T) for row in rows if row.weight > 0)
    for row in rows:
        length = len(row.answer_ids_T)
        if not length:
            continue
        ids = torch.tensor([*row.prompt_ids_P.tolist(), *row.answer_ids_T.tolist()])
        logits = model(ids[None], use_cache=False).logits[0] / row.temperature
        every = torch.log_softmax(logits, dim=-1)
        prompt = len(row.prompt_ids_P)
        for t in range(length):
            weight = row.weight * (1.0 if row.token_weights_T is None else row.token_weights_T[t])
            if weight == 0:
                continue
            new = every[prompt + t - 1, ids[prompt + t]]
            ratio = torch.exp(new - float(row.rollout_logprobs_T[t]))
            best = torch.minimum(
                ratio * row.advantage, torch.clamp(ratio, 1 - low, 1 + high) * row.advantage
            )
            z = {
                "all_tokens": tokens,
                "kept_tokens": kept,
                "sequences": len(rows),
                "seq_mean": length * len(rows),
                "fixed": row.max_tokens * len(rows),
            }[denominator]
            total = total - float(weight) * best / z
    total.backward()
    grads = {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
    }
    model.zero_grad()
    return total.item(), grads


def gradients(trainer: Trainer, rows) -> tuple[float, dict[str, torch.Tensor]]:
    """What one step would use, taken just before the optimizer sees it."""
    found: dict[str, torch.Tensor] = {}

    def keep(optimizer, args, kwargs):
        for name, p in trainer.model.named_parameters():
            found[name] = torch.zeros_like(p) if p.grad is None else p.grad.clone()

    handle = trainer.optimizer.register_step_pre_hook(keep)
    taken = trainer.step(rows)
    handle.remove()
    loss = taken.metrics["loss"]
    assert loss is not None
    return loss, found


def a_trainer(folder, *, micro_batch_tokens=4096, **changes) -> Trainer:
    settings = LearnerSettings.model_validate(
        {"micro_batch_tokens": micro_batch_tokens, "max_grad_norm": 1e9, "learning_rate": 0.0}
        | changes
    )
    return Trainer(a_model(folder), settings, dtype=torch.float32, interrupted=threading.Event())


@pytest.mark.parametrize("denominator", sorted(DENOMINATORS))
@pytest.mark.parametrize("seed", [1, 2])
def test_loss_and_gradients_equal_the_float64_reference(tmp_path, denominator, seed):
    rows = ragged_rows(seed)
    trainer = a_trainer(tmp_path, denominator=denominator, micro_batch_tokens=48)

    loss, grads = gradients(trainer, rows)
    expected_loss, expected = reference(a_model(tmp_path), rows, denominator, 0.2, 0.28)

    assert loss == pytest.approx(expected_loss, rel=1e-5, abs=1e-6)
    scale = max(g.abs().max().item() for g in expected.values())
    assert scale > 0
    for name, grad in grads.items():
        assert torch.allclose(grad.double(), expected[name], atol=1e-6 * max(1.0, scale)), name


@pytest.mark.parametrize("tokens", [16, 40, 100, 4096])
def test_the_gradient_does_not_depend_on_micro_batches_order_or_padding(tmp_path, tokens):
    rows = ragged_rows(3, 16)
    loss, grads = gradients(a_trainer(tmp_path), rows)
    shuffled = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]

    other_loss, other = gradients(a_trainer(tmp_path, micro_batch_tokens=tokens), shuffled)

    assert other_loss == pytest.approx(loss, abs=1e-6)
    for name, grad in grads.items():
        assert torch.allclose(grad, other[name], atol=1e-6), name


def test_every_loss_in_the_configuration_exists():
    for name in LearnerSettings.model_fields["loss"].annotation.__args__:  # type: ignore[union-attr]
        assert LOSSES[name](LearnerSettings())
