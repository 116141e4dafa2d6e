"""Every loss, correction and regulariser against an independent float64 reference, values and gradients."""

import threading

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from learner.denominators import DENOMINATORS
from learner.layout import answers_in_line
from learner.metrics import TokenSums
from learner.objective import Objective
from learner.settings import LearnerSettings
from learner.terms import Terms
from learner.trainer import Trainer
from tests import objective_reference as reference
from tests.learning import a_model, a_row, ragged_rows

LOSSES = [
    {"name": "ppo_clip"},
    {"name": "ppo_clip", "dual_clip": 1.5, "clip_low": 0.1},
    {"name": "ppo_clip", "anchor": "old"},
    {"name": "dr_grpo"},
    {"name": "gspo"},
    {"name": "gspo", "anchor": "old", "clip_low": 0.1, "clip_high": 0.1},
    {"name": "cispo"},
    {"name": "cispo", "low": 0.8, "high": 1.2},
    {"name": "sapo"},
    {"name": "sapo", "anchor": "old"},
    {"name": "dppo_tv", "limit": 0.02, "penalty": 0.1},
    {"name": "decoupled"},
    {"name": "decoupled", "proximal": "loglinear", "behavior_cap": 1.2},
    {"name": "reinforce"},
]
CORRECTIONS = [
    {"name": "tis", "cap": 1.1},
    {"name": "tis", "level": "sequence", "cap": 1.5},
    {"name": "icepop", "low": 0.8, "high": 1.2},
    {"name": "icepop", "low": 0.8, "high": 1.2, "inside": "one"},
    {"name": "sequence_mask", "low": 0.97, "high": 1.03},
    {"name": "sequence_mask", "statistic": "product", "low": 0.9, "high": 1.1},
    {"name": "sequence_mask", "statistic": "k3", "low": 0.0, "high": 0.0168},
    {"name": "m2po", "threshold": 0.02},
    {"name": "opsm", "threshold": 0.01},
]


def label(options) -> str:
    return "-".join(str(v) for v in options.values())


def objective(loss, **changes) -> Objective:
    extra = {"denominator": "fixed"} if loss["name"] == "dr_grpo" else {}
    return Objective.model_validate({"loss": loss} | extra | changes)


class Problem:
    """Random ragged rows with log-probabilities under all three policies, in float64."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.rows = [row for row in ragged_rows(seed) if row.tokens]
        self.counts = [row.tokens for row in self.rows]
        total = sum(self.counts)
        self.line = answers_in_line(self.rows, np.ones(len(self.rows)), torch.device("cpu"))
        rollout_N = self.line.rollout_logprobs_N.double()
        self.old_N = rollout_N + torch.from_numpy(rng.normal(0, 0.2, total))
        self.logprobs_N = (self.old_N + torch.from_numpy(rng.normal(0, 0.2, total))).detach()
        self.logprobs_N.requires_grad_()
        self.reference_N = rollout_N + torch.from_numpy(rng.normal(0, 0.4, total))

    def plain(self) -> list[dict[str, list]]:
        """The rows as the reference wants them; `new` are scalars cut from one tensor."""
        parts = [list(x.split(self.counts)) for x in (self.logprobs_N, self.old_N)]
        return [
            {
                "new": list(parts[0][i]),
                "old": parts[1][i].tolist(),
                "rollout": row.rollout_logprobs_T.astype(np.float64).tolist(),
                "advantages": row.advantages_T().astype(np.float64).tolist(),
                "weights": row.weights_T().tolist(),
                "ages": row.ages().tolist(),
            }
            for i, row in enumerate(self.rows)
        ]

    def ours(self, found: Objective, scales) -> tuple[float, torch.Tensor]:
        line = answers_in_line(self.rows, np.asarray(scales), torch.device("cpu"))
        # Float64 throughout: what is compared is the formula, not its round-off.
        exact = {
            name: torch.from_numpy(np.concatenate(parts))
            for name, parts in {
                "coefficients_N": [
                    r.weights_T() * s for r, s in zip(self.rows, scales, strict=True)
                ],
                "scales_N": [np.full(r.tokens, s) for r, s in zip(self.rows, scales, strict=True)],
            }.items()
        }
        line = line.__class__(
            **{
                k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v
                for k, v in (vars(line) | exact).items()
            }
        )
        terms = Terms(found)
        loss = terms.loss(
            line, self.logprobs_N, torch.zeros_like(self.logprobs_N), old_N=self.old_N,
            whole_N=terms.whole_step_factors(line, self.old_N), sums=TokenSums(),
            reference_N=self.reference_N if found.kl else None,
        )  # fmt: skip
        (grad,) = torch.autograd.grad(loss, [self.logprobs_N])
        return loss.item(), grad


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("loss", LOSSES, ids=label)
def test_a_loss_equals_the_float64_reference(loss, seed):
    problem, found = Problem(seed), objective(loss)
    scales = DENOMINATORS[found.denominator](problem.rows)

    value, grad = problem.ours(found, scales)
    expected = reference.total(problem.plain(), scales, found.loss.model_dump())
    (wanted,) = torch.autograd.grad(expected, [problem.logprobs_N])

    assert value == pytest.approx(expected.item(), abs=1e-6)
    assert wanted.abs().max() > 1e-4
    assert torch.allclose(grad, wanted, atol=1e-6)


@pytest.mark.parametrize("correction", CORRECTIONS, ids=label)
def test_a_correction_equals_the_float64_reference(correction):
    anchored = {"name": "ppo_clip", "anchor": "old"}
    found = objective(anchored, corrections=[correction])
    table = [one.model_dump() for one in found.corrections]
    acts, leaves = [], []
    for seed in (1, 2, 3):
        problem = Problem(seed)
        scales = DENOMINATORS["all_tokens"](problem.rows)

        value, grad = problem.ours(found, scales)
        expected = reference.total(problem.plain(), scales, found.loss.model_dump(), table)
        (wanted,) = torch.autograd.grad(expected, [problem.logprobs_N])

        assert value == pytest.approx(expected.item(), abs=1e-6)
        assert torch.allclose(grad, wanted, atol=1e-6)
        acts.append(not torch.allclose(grad, problem.ours(objective(anchored), scales)[1]))
        leaves.append(bool(wanted.abs().max() > 1e-4))
    assert any(acts)
    assert all(leaves)


def test_several_corrections_multiply():
    problem = Problem(4)
    found = objective({"name": "reinforce"}, corrections=[CORRECTIONS[0], CORRECTIONS[7]])
    scales = DENOMINATORS["seq_mean"](problem.rows)

    value, grad = problem.ours(found, scales)
    table = [one.model_dump() for one in found.corrections]
    expected = reference.total(problem.plain(), scales, found.loss.model_dump(), table)
    (wanted,) = torch.autograd.grad(expected, [problem.logprobs_N])

    assert value == pytest.approx(expected.item(), abs=1e-6)
    assert torch.allclose(grad, wanted, atol=1e-6)


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_the_divergence_equals_the_float64_reference_and_ignores_weights(name):
    problem = Problem(5)
    loss = {"name": "reinforce"}
    found = objective(loss, kl={"name": name, "coefficient": 0.3})
    scales = DENOMINATORS["all_tokens"](problem.rows)

    value, grad = problem.ours(found, scales)
    base, base_grad = problem.ours(objective(loss), scales)
    terms = [
        (scale, *reference.divergence(name, new, ref))
        for scale, row, refs in zip(
            scales, problem.plain(), problem.reference_N.split(problem.counts), strict=True
        )
        for new, ref in zip(row["new"], refs.tolist(), strict=True)
    ]
    wanted = torch.autograd.grad(sum(0.3 * s * g for s, _, g in terms), [problem.logprobs_N])[0]

    assert value - base == pytest.approx(sum(0.3 * s * v for s, v, _ in terms), abs=1e-6)
    assert torch.allclose(grad - base_grad, wanted, atol=1e-6)
    assert (wanted != 0).all()


@pytest.mark.parametrize("correction", ["tis", {"name": "icepop"}])
@pytest.mark.parametrize("loss", ["ppo_clip", "gspo", "dppo_tv", "decoupled"])
def test_what_weighs_by_the_rollout_twice_is_refused(loss, correction):
    with pytest.raises(ValidationError, match="weighs by the ratio to the rollout already"):
        Objective.model_validate({"loss": loss, "corrections": [correction]})


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"loss": "ppo"}, "ppo_clip"),
        ({"loss": {"name": "ppo_clip", "clip": 0.2}}, "clip"),
        ({"loss": {"name": "ppo_clip", "clip_low": 1.5}}, "less than 1"),
        ({"loss": "dr_grpo"}, "expected 'fixed'"),
        ({"corrections": ["masks"]}, "sequence_mask"),
        ({"kl": {"name": "k4", "coefficient": 0.1}}, "k3"),
        ({"updates_per_step": 0}, "greater than or equal to 1"),
        ({"loss": {"name": "cispo", "low": 6}}, "low 6: expected at most high 5"),
        ({"corrections": [{"name": "icepop", "high": 0.1}]}, "low 0.5: expected at most high 0.1"),
        (
            {"corrections": [{"name": "sequence_mask", "low": 2}]},
            "low 2: expected at most high 1.01",
        ),
    ],
)
def test_an_impossible_objective_is_refused_with_what_is_expected(table, message):
    with pytest.raises(ValidationError, match=message):
        LearnerSettings.model_validate(table)


@pytest.mark.parametrize(
    ("options", "band"),
    [
        ({}, (0.99, 1.01)),
        ({"statistic": "product"}, (0.0, 3.0)),
        ({"statistic": "k3"}, (0.0, 0.01)),
        ({"statistic": "k3", "high": 0.5}, (0.0, 0.5)),
    ],
)
def test_a_sequence_mask_without_a_band_keeps_answers_on_which_trainer_and_engine_agree(
    options, band
):
    table = {"corrections": [{"name": "sequence_mask"} | options]}

    (mask,) = Objective.model_validate(table).corrections

    assert (mask.low, mask.high) == band
    # Of equal log-probabilities: k3 is 0, the others are 1.
    assert mask.low <= (0.0 if mask.statistic == "k3" else 1.0) <= mask.high


# --- the whole step -------------------------------------------------------------------------------


def a_trainer(folder, loss, *, micro_batch_tokens=4096, **changes) -> Trainer:
    extra = {"denominator": "fixed"} if loss["name"] == "dr_grpo" else {}
    settings = LearnerSettings.model_validate(
        {"micro_batch_tokens": micro_batch_tokens, "max_grad_norm": 1e9, "learning_rate": 0.0}
        | {"loss": loss}
        | extra
        | changes
    )
    trainer = Trainer(a_model(folder), settings, dtype=torch.float32, interrupted=threading.Event())
    if settings.kl is not None:
        trainer.reference = a_model(folder, seed=7).requires_grad_(False)
    return trainer


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


def scores(model, row) -> torch.Tensor:
    """(T, V) log-probabilities of each next token, in float64."""
    ids = torch.tensor([*row.prompt_ids_P.tolist(), *row.answer_ids_T.tolist()])
    logits = model(ids[None], use_cache=False).logits[0] / row.temperature
    return torch.log_softmax(logits, dim=-1)[len(row.prompt_ids_P) - 1 : -1]


def whole(folder, trainer: Trainer, rows) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients in float64, one row at a time, no tricks."""
    model, s = a_model(folder).double(), trainer.settings
    frozen = a_model(folder, seed=7).double()
    lengths = [row.tokens for row in rows]
    kept = sum(row.tokens for row in rows if row.weight > 0)
    scales = {
        "all_tokens": [1 / sum(lengths)] * len(rows),
        "kept_tokens": [1 / kept] * len(rows),
        "sequences": [1 / len(rows)] * len(rows),
        "seq_mean": [1 / (max(n, 1) * len(rows)) for n in lengths],
        "fixed": [1 / (row.max_tokens * len(rows)) for row in rows],
    }[s.denominator]
    plain, regularisers, shown = [], torch.zeros((), dtype=torch.float64), 0.0
    for row, scale in zip(rows, scales, strict=True):
        every = scores(model, row) if row.tokens else torch.zeros(0, 1, dtype=torch.float64)
        chosen = [every[t, token] for t, token in enumerate(row.answer_ids_T)]
        plain.append(
            {
                "new": chosen,
                "old": [x.item() for x in chosen],
                "rollout": row.rollout_logprobs_T.tolist(),
                "advantages": row.advantages_T().tolist(),
                "weights": row.weights_T().tolist(),
                "ages": row.ages().tolist(),
            }
        )
        if s.kl is not None and row.tokens:
            other = scores(frozen, row).detach()
            for t, token in enumerate(row.answer_ids_T):
                value, sloped = reference.divergence(s.kl.name, chosen[t], other[t, token].item())
                regularisers = regularisers + s.kl.coefficient * scale * sloped
                shown += s.kl.coefficient * scale * (value - sloped.item())
        if s.entropy_bonus:
            entropy = -(every.exp() * every).sum()
            regularisers = regularisers - s.entropy_bonus * scale * entropy
    table = [c.model_dump() for c in s.corrections]
    total = reference.total(plain, scales, s.loss.model_dump(), table) + regularisers
    total.backward()
    return total.item() + shown, {
        name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()
    }  # fmt: skip


def check(folder, trainer, rows) -> None:
    loss, grads = gradients(trainer, rows)
    expected_loss, expected = whole(folder, trainer, rows)

    assert loss == pytest.approx(expected_loss, rel=1e-5, abs=1e-6)
    scale = max(g.abs().max().item() for g in expected.values())
    assert scale > 0
    for name, grad in grads.items():
        assert torch.allclose(grad.double(), expected[name], atol=1e-6 * max(1.0, scale)), name


@pytest.mark.parametrize("denominator", sorted(DENOMINATORS))
@pytest.mark.parametrize("seed", [1, 2])
def test_a_step_equals_the_float64_reference_with_every_denominator(tmp_path, denominator, seed):
    trainer = a_trainer(
        tmp_path, {"name": "ppo_clip"}, denominator=denominator, micro_batch_tokens=48
    )

    check(tmp_path, trainer, ragged_rows(seed))


@pytest.mark.parametrize("loss", LOSSES, ids=label)
def test_a_step_equals_the_float64_reference_with_every_loss(tmp_path, loss):
    check(tmp_path, a_trainer(tmp_path, loss, micro_batch_tokens=48), ragged_rows(3))


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_a_step_equals_the_float64_reference_with_everything_on(tmp_path, name):
    trainer = a_trainer(
        tmp_path,
        {"name": "ppo_clip", "anchor": "old"},
        corrections=[{"name": "icepop", "low": 0.05, "high": 20.0}, {"name": "m2po", "threshold": 1.0}],
        kl={"name": name, "coefficient": 0.2},
        entropy_bonus=0.1,
        micro_batch_tokens=48,
    )  # fmt: skip

    check(tmp_path, trainer, ragged_rows(4))


@pytest.mark.parametrize("tokens", [16, 100])
@pytest.mark.parametrize("loss", LOSSES, ids=label)
def test_a_step_does_not_depend_on_micro_batches_order_or_padding(tmp_path, loss, tokens):
    rows = ragged_rows(3, 16)
    everything = {
        "corrections": [{"name": "m2po", "threshold": 1.0}, {"name": "opsm"}],
        "kl": {"name": "k3", "coefficient": 0.1},
        "entropy_bonus": 0.1,
    }
    loss_value, grads = gradients(a_trainer(tmp_path, loss, **everything), rows)
    shuffled = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]

    other_value, other = gradients(
        a_trainer(tmp_path, loss, micro_batch_tokens=tokens, **everything), shuffled
    )

    assert other_value == pytest.approx(loss_value, abs=1e-5)
    for name, grad in grads.items():
        assert torch.allclose(grad, other[name], atol=1e-5), name


@pytest.mark.parametrize(("rows_chosen", "moves"), [("all", True), ("signal", False)])
def test_d11_the_stated_rows_are_regularised_and_no_others(tmp_path, rows_chosen, moves):
    mixed, uniform = [a_row(5), a_row(4, advantage=-1.0)], [a_row(6, advantage=0.0, group=1)]
    regularised = {
        "kl": {"name": "k3", "coefficient": 0.5},
        "entropy_bonus": 0.5,
        "regularized_rows": rows_chosen,
        "denominator": "sequences",
    }

    with_it = gradients(a_trainer(tmp_path, LOSSES[0], **regularised), [*mixed, *uniform])[1]
    without = gradients(
        a_trainer(tmp_path, LOSSES[0], **regularised), [*mixed, a_row(0, advantage=0.0, group=1)]
    )[1]

    moved = max((with_it[name] - without[name]).abs().max().item() for name in with_it)
    assert (moved > 1e-3) is moves


def test_a_kl_term_without_its_reference_is_an_error_not_a_silent_zero(tmp_path):
    trainer = a_trainer(tmp_path, LOSSES[0], kl={"name": "k3", "coefficient": 0.5})
    trainer.reference = None

    with pytest.raises(ValueError, match="reference"):
        trainer.step(ragged_rows(1))
