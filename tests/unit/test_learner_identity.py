"""The identity check: agrees with a right engine, refuses a wrong one and names the likely cause."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from broker.messages import VersionSpan
from learner.batch import Row
from learner.identity import BANDS, MAX_TOKENS, NotIdentical, agreement, check, comparable
from learner.settings import LearnerSettings
from learner.trainer import Trainer
from tests.learning import a_model, a_row


@pytest.fixture(scope="module")
def trainer(tmp_path_factory) -> Trainer:
    return Trainer(
        a_model(tmp_path_factory.mktemp("model")), LearnerSettings(), dtype=torch.float32,
        interrupted=threading.Event(),
    )  # fmt: skip


def some_rows(temperature: float = 0.6) -> list[Row]:
    return [a_row(5 + i, prompt=2 + i % 3, temperature=temperature) for i in range(12)]


def scored(trainer: Trainer, rows: list[Row]) -> list[np.ndarray]:
    return [part.numpy() for part in trainer.logprobs(rows)]


def sampled_as(rows: list[Row], values: list[np.ndarray]) -> list[Row]:
    return [
        replace(r, rollout_logprobs_T=np.asarray(v, np.float32))
        for r, v in zip(rows, values, strict=True)
    ]


def test_the_right_log_probabilities_agree(trainer):
    rows = some_rows()
    right = sampled_as(rows, scored(trainer, rows))

    found = check(trainer, right, BANDS["float32"])

    assert found.tokens == sum(row.tokens for row in rows)
    assert found.gap < 1e-6


def at_one(rows):
    return [replace(row, temperature=1.0) for row in rows]


def noise(rows, spread):
    rng = np.random.default_rng(0)
    return [rng.normal(0, spread, row.tokens) for row in rows]


def end_token(values):
    return [np.append(v[:-1], v[-1] - 5.0) for v in values]


WRONG = {
    "temperature 1": lambda t, rows: scored(t, at_one(rows)),
    "divides log-probabilities": lambda t, rows: [v / 0.6 for v in scored(t, at_one(rows))],
    "one token late": lambda t, rows: [np.append(0.0, v[:-1]) for v in scored(t, rows)],
    "one token early": lambda t, rows: [np.append(v[1:], 0.0) for v in scored(t, rows)],
    "end token": lambda t, rows: end_token(scored(t, rows)),
    "truncated distribution": lambda t, rows: [v + 0.1 for v in scored(t, rows)],
    "lower precision": lambda t, rows: [
        a + b for a, b in zip(scored(t, rows), noise(rows, 0.08), strict=True)
    ],
    "other weights": lambda t, rows: [row.rollout_logprobs_T for row in rows],
}


@pytest.mark.parametrize("cause", WRONG)
def test_a_wrong_engine_is_refused_and_the_likely_cause_named(trainer, cause):
    rows = some_rows()
    wrong = sampled_as(rows, WRONG[cause](trainer, rows))

    with pytest.raises(NotIdentical, match=rf"(?s)identity_band 0\.02\. Likely cause: .*{cause}"):
        check(trainer, wrong, BANDS["float32"])


def test_a_wider_band_may_be_stated(trainer):
    rows = some_rows()
    rough = sampled_as(rows, WRONG["lower precision"](trainer, rows))

    assert 0.02 < check(trainer, rough, BANDS["bfloat16"]).gap < 0.1


def test_log_probabilities_that_are_not_finite_on_our_side_are_outside_every_band(trainer):
    rows = some_rows()
    right = sampled_as(rows, scored(trainer, rows))
    weight = trainer.model.get_input_embeddings().weight
    whole = weight.data.clone()
    weight.data[:] = float("nan")

    try:
        with pytest.raises(NotIdentical, match="not finite"):
            check(trainer, right, 1e9)
    finally:
        weight.data.copy_(whole)
    assert agreement(trainer, right).gap < 1e-6


def test_only_rows_of_the_trainers_own_version_are_compared():
    old, own = VersionSpan(version=2, first=0, end=2), VersionSpan(version=3, first=2, end=4)
    fresh = replace(a_row(4), version=3, spans=(own.model_copy(update={"first": 0}),))
    mixed = replace(a_row(4), version=3, spans=(old, own))
    broken = replace(fresh, rollout_logprobs_T=np.full(4, np.nan, np.float32))

    assert comparable([mixed, fresh, broken, a_row(0)]) == [fresh]
    assert sum(row.length for row in comparable([a_row(60)] * 500)) <= MAX_TOKENS
