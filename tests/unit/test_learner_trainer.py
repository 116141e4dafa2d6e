"""Steps: repeatable to the bit, and nothing changes where there is nothing to learn."""

import threading

import numpy as np
import pytest
import torch

from learner.batch import rows_of
from learner.checkpoint import (
    BadCheckpoint,
    Checkpoint,
    CheckpointState,
    folder_name,
    read,
    remove_others,
    write,
)
from learner.interrupt import Interrupted
from learner.metrics import group_metrics
from learner.model import digest_of, load_weights, weights_bytes
from learner.schedule import learning_rate
from learner.settings import LearnerSettings
from learner.trainer import Trainer
from learner.windows import Member, Rules, Window, make_plan, sweep
from tests.learning import VOCABULARY, a_group, a_model, a_row, ragged_rows


def a_trainer(folder, **changes) -> Trainer:
    settings = LearnerSettings.model_validate(
        {"learning_rate": 1e-2, "micro_batch_tokens": 64} | changes
    )
    return Trainer(a_model(folder), settings, dtype=torch.float32, interrupted=threading.Event())


def digest(trainer: Trainer) -> str:
    return digest_of(trainer.weights())


def test_the_same_steps_give_the_same_bytes(tmp_path):
    digests = set()
    for _ in range(2):
        trainer = a_trainer(tmp_path)
        for seed in (1, 2):
            assert trainer.step(ragged_rows(seed)).skipped == ""
        digests.add(digest(trainer))

    assert len(digests) == 1


def test_two_steps_then_a_checkpoint_then_two_steps_equal_four_steps_to_the_bit(tmp_path):
    straight = a_trainer(tmp_path / "m")
    for seed in (1, 2, 3, 4):
        straight.step(ragged_rows(seed))
    first = a_trainer(tmp_path / "m")
    for seed in (1, 2):
        first.step(ragged_rows(seed))
    path = write(tmp_path, checkpoint_of(first, step=2, version=2))

    second = a_trainer(tmp_path / "m")
    loaded = read(path)
    second.restore(loaded.model, loaded.optimizer, loaded.state.rng)
    for seed in (3, 4):
        second.step(ragged_rows(seed))

    assert digest(second) == digest(straight)
    assert second.state() == straight.state()
    assert digest(first) != digest(straight)


def test_without_signal_neither_weights_nor_optimizer_move(tmp_path):
    trainer = a_trainer(tmp_path)
    # Momentum from an earlier step would move the weights if the optimizer were stepped.
    trainer.step(ragged_rows(1))
    before = trainer.state()

    constant = [a_row(5, advantage=0.0) for _ in range(4)]
    masked = [a_row(5, weight=0.0), a_row(0), a_row(3, token_weights=np.zeros(3, np.float32))]
    for rows in (constant, masked, []):
        taken = trainer.step(rows)
        assert taken.skipped == "no_signal"
        assert (taken.metrics["loss"], taken.metrics["grad_norm"]) == (0.0, 0.0)

    assert trainer.state() == before


def test_rows_without_advantage_count_in_the_denominator_and_nowhere_else(tmp_path):
    rows = [a_row(5, advantage=1.0), a_row(7, advantage=0.0)]
    alone = a_trainer(tmp_path).step(rows[:1]).metrics["loss"]

    both = a_trainer(tmp_path).step(rows).metrics["loss"]

    assert alone is not None
    assert both == pytest.approx(alone * 5 / 12)


def test_a_gradient_that_is_not_finite_changes_nothing(tmp_path):
    trainer = a_trainer(tmp_path)
    trainer.step(ragged_rows(1))
    before = trainer.state()
    rows = [a_row(5, advantage=3e38), a_row(5, advantage=-3e38, prompt=4)]

    taken = trainer.step([*rows, *rows])

    assert taken.skipped == "nonfinite"
    assert taken.metrics["grad_norm"] is None
    assert all(v is None or np.isfinite(v) for v in taken.metrics.values())
    assert trainer.state() == before
    assert all(p.grad is None for p in trainer.model.parameters())
    assert trainer.step(ragged_rows(2)).skipped == ""


def test_the_gradient_is_clipped_and_its_norm_before_is_told(tmp_path):
    rows = ragged_rows(1)
    free = a_trainer(tmp_path, max_grad_norm=1e9)
    norm = free.step(rows).metrics["grad_norm"]
    assert norm is not None

    seen: list[float] = []
    bound = a_trainer(tmp_path, max_grad_norm=norm / 10)
    bound.optimizer.register_step_pre_hook(
        lambda *_: seen.append(
            sum(p.grad.square().sum().item() for p in bound.model.parameters()) ** 0.5
        )
    )
    assert bound.step(rows).metrics["grad_norm"] == pytest.approx(norm)

    assert seen == [pytest.approx(norm / 10, rel=1e-4)]


@pytest.mark.parametrize("layers_first", [0, 1, 3])
@pytest.mark.parametrize("backward", [False, True])
def test_a_step_can_be_interrupted_between_layers_and_leaves_everything_as_before(
    tmp_path, backward, layers_first
):
    trainer = a_trainer(tmp_path)
    before = trainer.state()
    passed = 0

    def count(*_: object) -> None:
        nonlocal passed
        passed += 1
        if passed > layers_first:
            trainer.interrupted.set()

    for layer in trainer.model.model.layers:
        if backward:
            layer.register_full_backward_hook(count)
        else:
            layer.register_forward_pre_hook(count)
    with pytest.raises(Interrupted):
        trainer.step(ragged_rows(1))

    assert passed == layers_first + 1
    assert trainer.state() == before
    assert all(p.grad is None for p in trainer.model.parameters())


def test_gradients_that_were_given_up_leave_no_trace(tmp_path):
    trainer, plain = a_trainer(tmp_path), a_trainer(tmp_path)
    mine, others = ragged_rows(1), ragged_rows(2)

    trainer.begin(others)
    trainer.finish(trainer.begin(mine))
    plain.step(mine)

    assert digest(trainer) == digest(plain)
    trainer.begin(others)
    assert digest(trainer) == digest(plain), "beginning changes no weights"


def test_right_after_sampling_the_ratio_is_one_and_the_kl_zero(tmp_path):
    trainer = a_trainer(tmp_path, learning_rate=0.0)
    row = a_row(6)
    ids = torch.tensor([*row.prompt_ids_P.tolist(), *row.answer_ids_T.tolist()])
    logprobs = torch.log_softmax(trainer.model(ids[None]).logits[0], -1).detach().numpy()
    own = logprobs[np.arange(2, 8), row.answer_ids_T].astype(np.float32)

    metrics = trainer.step(
        [a_row(6).__class__(**{**row.__dict__, "rollout_logprobs_T": own})]
    ).metrics

    assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-8)
    assert metrics["clip_fraction"] == 0.0
    assert metrics["loss"] == pytest.approx(-1.0, abs=1e-5)
    assert metrics["entropy"] is not None
    assert metrics["entropy"] > 0


def test_facts_of_the_groups_are_counted_per_domain():
    groups = [
        a_group("00000001-0-0", rewards=(1.0, 0.0), domain="math", version=3),
        a_group("00000002-0-0", rewards=(1.0, 1.0), domain="logic", version=4),
    ]
    members = tuple(
        Member(g.group.group_id, g.group.bundle, g.group.domain, i, g) for i, g in enumerate(groups)
    )
    plan = make_plan(
        Window(1, members, 9), sweep(members, Rules(2, VOCABULARY), version=5),
        version=5, writer_id="w", at_us=1,
    )  # fmt: skip

    found = group_metrics(plan.groups, groups, rows_of(groups, version=5))

    lengths = [len(g.token_ids) for group in groups for g in group.generations]
    assert found["groups"] == 2
    assert (found["generations"], found["kept_generations"]) == (4, 4)
    assert found["tokens"] == found["kept_tokens"] == sum(lengths)
    assert found["signal_groups"] == 1
    assert (found["staleness_mean"], found["staleness_max"]) == (1.5, 2)
    assert found["reward_mean"] == 0.75
    assert (found["reward/math"], found["reward/logic"]) == (0.5, 1.0)
    assert (found["groups/math"], found["groups/logic"]) == (1, 1)
    assert found["abs_weighted_advantage"] == pytest.approx(0.5 * sum(lengths[:2]))


# --- weights and checkpoints ------------------------------------------------------------------


def test_weights_survive_the_trip_and_tied_tensors_travel_once(tmp_path):
    model, other = a_model(tmp_path, seed=0), a_model(tmp_path, seed=1)
    data = weights_bytes(model)
    assert weights_bytes(other) != data

    load_weights(other, data)

    assert weights_bytes(other) == data
    assert b"lm_head" not in data
    assert torch.equal(other.lm_head.weight, model.model.embed_tokens.weight)


def checkpoint_of(trainer: Trainer, *, step: int, version: int) -> Checkpoint:
    model, optimizer = trainer.state()
    state = CheckpointState(
        step=step, version=version, cursor=17, rng=trainer.rng(), config_sha256="c", world_size=1,
        threads=1, libraries={"torch": torch.__version__}, model_sha256=digest_of(model),
        optimizer_sha256=digest_of(optimizer),
    )  # fmt: skip
    return Checkpoint(state, model, optimizer)


def test_a_checkpoint_comes_back_as_written(tmp_path):
    trainer = a_trainer(tmp_path / "m")
    trainer.step(ragged_rows(1))
    made = checkpoint_of(trainer, step=3, version=2)

    path = write(tmp_path / "c", made)

    assert path.name == folder_name(3, 2)
    assert read(path) == made
    assert [p.name for p in (tmp_path / "c").iterdir()] == [path.name]


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.msgpack"])
@pytest.mark.parametrize("harm", ["missing", "truncated", "changed"])
def test_a_damaged_checkpoint_is_refused(tmp_path, name, harm):
    trainer = a_trainer(tmp_path / "m")
    trainer.step(ragged_rows(1))
    path = write(tmp_path, checkpoint_of(trainer, step=1, version=1))
    data = (path / name).read_bytes()
    if harm == "missing":
        (path / name).unlink()
    else:
        (path / name).write_bytes(data[:-9] if harm == "truncated" else b"\xc1" + data[1:])

    with pytest.raises(BadCheckpoint, match="checkpoint"):
        read(path)


def test_retention_deletes_old_and_unfinished_checkpoints_and_nothing_else(tmp_path):
    for name in ("step-00000001-v00000001", "step-00000002-v00000002", ".tmp-step-3", "notes"):
        (tmp_path / name).mkdir()

    removed = remove_others(tmp_path, ["step-00000002-v00000002"])

    assert removed == [".tmp-step-3", "step-00000001-v00000001"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes", "step-00000002-v00000002"]


def test_a_step_moves_as_far_as_its_rate_says(tmp_path):
    moved = []
    for rate in (None, 1e-4):
        trainer = a_trainer(tmp_path)
        before = [p.detach().clone() for p in trainer.model.parameters()]
        assert trainer.step(ragged_rows(1), rate=rate).skipped == ""
        after = trainer.model.parameters()
        moved.append(
            sum(float((a.detach() - b).abs().sum()) for a, b in zip(after, before, strict=True))
        )

    assert moved[1] == pytest.approx(moved[0] * 1e-4 / 1e-2, rel=0.01)


def test_a_linear_schedule_ends_near_zero():
    settings = LearnerSettings(learning_rate=3e-4, schedule="linear")

    assert [learning_rate(settings, done) for done in (0.0, 0.5, 0.99)] == [
        3e-4, 1.5e-4, pytest.approx(3e-6)
    ]  # fmt: skip


def test_a_constant_schedule_does_not_look_at_the_step():
    settings = LearnerSettings(learning_rate=3e-4)

    assert learning_rate(settings, 0.0) == learning_rate(settings, 0.99) == 3e-4
