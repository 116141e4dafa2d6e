"""Several optimizer updates a step, and what a step tells about itself."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from learner.batch import parts_of
from learner.interrupt import Interrupted
from learner.model import digest_of
from learner.settings import LearnerSettings
from learner.trainer import Trainer
from tests import objective_reference as reference
from tests.learning import a_model, a_row, ragged_rows


def a_trainer(folder, **changes) -> Trainer:
    settings = LearnerSettings.model_validate(
        {"learning_rate": 1e-2, "micro_batch_tokens": 64} | changes
    )
    return Trainer(a_model(folder), settings, dtype=torch.float32, interrupted=threading.Event())


def two_groups() -> list:
    return [a_row(3 + i % 4, group=i // 3, advantage=(-1.0) ** i, prompt=2 + i) for i in range(6)]


def test_groups_stay_whole_and_every_row_is_in_one_part():
    rows = [a_row(2, group=g, prompt=1 + i) for i, g in enumerate([0, 0, 1, 2, 2, 3, 4])]

    found = parts_of(rows, 2)

    assert [sorted({row.group for row in part}) for part in found] == [[0, 1, 2], [3, 4]]
    assert [row for part in found for row in part] == rows
    assert len(parts_of(rows, 99)) == 5
    assert parts_of([], 3) == []


def test_two_updates_a_step_are_two_steps_on_half_the_groups(tmp_path):
    rows = two_groups()
    apart = a_trainer(tmp_path)
    for group in (0, 1):
        apart.step([row for row in rows if row.group == group])

    together = a_trainer(tmp_path, updates_per_step=2)
    metrics = together.step(rows).metrics

    assert digest_of(together.weights()) == digest_of(apart.weights())
    assert metrics["updates"] == 2


def test_the_old_policy_of_the_second_update_is_the_one_before_the_first(tmp_path):
    rows = two_groups()
    trainer = a_trainer(tmp_path, updates_per_step=2, max_grad_norm=1e9, loss={"name": "decoupled"})
    seen = []

    def keep(optimizer, args, kwargs):
        grads = {n: p.grad.clone() for n, p in trainer.model.named_parameters()}
        weights = {n: p.detach().clone() for n, p in trainer.model.named_parameters()}
        seen.append((weights, grads))

    trainer.optimizer.register_step_pre_hook(keep)
    before, now = a_model(tmp_path).double(), a_model(tmp_path).double()
    trainer.step(rows)
    weights, grads = seen[1]
    now.load_state_dict({n: w.double() for n, w in weights.items()}, strict=False)

    def logprobs(model, row):
        ids = torch.tensor([*row.prompt_ids_P.tolist(), *row.answer_ids_T.tolist()])
        every = torch.log_softmax(model(ids[None], use_cache=False).logits[0], -1)
        first = len(row.prompt_ids_P) - 1
        return [every[first + t, token] for t, token in enumerate(row.answer_ids_T)]

    second = [row for row in rows if row.group == 1]
    plain = [
        {
            "new": logprobs(now, row),
            "old": [x.item() for x in logprobs(before, row)],
            "rollout": row.rollout_logprobs_T.tolist(),
            "advantages": row.advantages_T().tolist(),
            "weights": row.weights_T().tolist(),
            "ages": [0.0] * row.tokens,
        }
        for row in second
    ]
    scales = [1 / sum(row.tokens for row in second)] * len(second)
    reference.total(plain, scales, trainer.settings.loss.model_dump()).backward()

    scale = max(p.grad.abs().max().item() for p in now.parameters())
    for name, parameter in now.named_parameters():
        close = torch.allclose(grads[name].double(), parameter.grad, atol=1e-5 * max(1.0, scale))
        assert close, name
    shifts = (
        abs(a.item() - b) for row in plain for a, b in zip(row["new"], row["old"], strict=True)
    )
    assert max(shifts) > 1e-2


def test_a_second_update_that_is_not_finite_undoes_the_first(tmp_path):
    trainer = a_trainer(tmp_path, updates_per_step=2)
    trainer.step(ragged_rows(1))
    before = trainer.state()
    broken = [a_row(5, group=1, advantage=3e38), a_row(5, group=1, advantage=-3e38, prompt=4)]

    taken = trainer.step([a_row(4, group=0), *broken])

    assert taken.skipped == "nonfinite"
    assert trainer.state() == before


def test_an_interruption_between_two_updates_leaves_everything_as_before(tmp_path):
    trainer = a_trainer(tmp_path, updates_per_step=2)
    before = trainer.state()
    trainer.optimizer.register_step_post_hook(lambda *_: trainer.interrupted.set())

    with pytest.raises(Interrupted):
        trainer.step(two_groups())

    assert trainer.state() == before


def test_ratios_and_effective_sample_size_are_those_of_trained_over_rollout(tmp_path):
    trainer = a_trainer(tmp_path, learning_rate=0.0)
    row = a_row(4)
    (own,) = trainer.logprobs([row])
    ratios = np.array([0.5, 1.0, 1.25, 2.0])
    row = replace(row, rollout_logprobs_T=own.numpy() - np.log(ratios).astype(np.float32))

    metrics = trainer.step([row]).metrics

    assert metrics["ratio_min"] == pytest.approx(0.5, rel=1e-4)
    assert metrics["ratio_max"] == pytest.approx(2.0, rel=1e-4)
    assert metrics["ratio_mean"] == pytest.approx(ratios.mean(), rel=1e-4)
    expected = ratios.sum() ** 2 / (4 * (ratios**2).sum())
    assert metrics["effective_sample_size"] == pytest.approx(expected, rel=1e-4)
    assert metrics["kl"] == pytest.approx((ratios - 1 - np.log(ratios)).mean(), rel=1e-3)
    assert metrics["clip_fraction"] == 0.25  # of A = 1: only the ratio above 1.28
    assert metrics["corrected_fraction"] == 0.0
    assert metrics["reference_kl"] is None


def test_tokens_that_a_correction_leaves_out_are_counted(tmp_path):
    trainer = a_trainer(
        tmp_path, corrections=[{"name": "icepop", "low": 0.6, "high": 1.9, "inside": "one"}]
    )
    row = a_row(4)
    (own,) = trainer.logprobs([row])
    ratios = np.array([0.5, 1.0, 1.25, 2.0], np.float32)
    row = replace(row, rollout_logprobs_T=own.numpy() - np.log(ratios))

    assert trainer.step([row]).metrics["corrected_fraction"] == 0.5


@pytest.mark.parametrize("updates", [1, 2])
def test_where_corrections_leave_nothing_neither_weights_nor_optimizer_move(tmp_path, updates):
    trainer = a_trainer(tmp_path)
    trainer.step(ragged_rows(1))
    before = trainer.state()
    nothing = {"corrections": [{"name": "sequence_mask", "low": 1e6, "high": 2e6}]}
    masking = a_trainer(tmp_path, updates_per_step=updates, **nothing)
    masking.restore(*before, trainer.rng())

    taken = masking.step(ragged_rows(2))

    assert taken.skipped == "no_signal"
    assert (taken.metrics["grad_norm"], taken.metrics["updates"]) == (0.0, 0)
    assert masking.state() == before
