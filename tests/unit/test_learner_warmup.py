"""The supervised start: learns, repeats itself to the bit, draws fairly, refuses what it cannot use."""

import threading

import pytest
import torch

from broker.errors import BadConfiguration
from learner.interrupt import Interrupted, make_interruptible
from learner.model import digest_of, weights_bytes
from learner.settings import WarmupSettings
from learner.supervise import warm_up
from learner.warmup import WarmupExample, check_examples, draw_batches, learning_rate
from tests.learning import a_model


def examples() -> list[WarmupExample]:
    return [WarmupExample([3 + i, 4], [5 + i, 6 + i, 2]) for i in range(8)]


def warmed(folder, *, seed=0, steps=60, interrupted=None):
    model = a_model(folder)
    make_interruptible(model, interrupted or threading.Event())
    losses: list[float] = []
    warm_up(
        model,
        examples(),
        WarmupSettings(steps=steps, batch_size=4, learning_rate=3e-3),
        micro_batch_tokens=16,
        seed=seed,
        dtype=torch.float32,
        progress=lambda step, loss: losses.append(loss),
    )
    return digest_of(weights_bytes(model)), losses


def test_the_warm_up_learns_and_is_repeatable_to_the_bit(tmp_path):
    found, losses = warmed(tmp_path)

    assert (found, losses) == warmed(tmp_path)
    assert found != warmed(tmp_path, seed=1)[0]
    assert len(losses) == 60
    assert losses[-1] < losses[0] / 2


def test_the_warm_up_can_be_interrupted(tmp_path):
    interrupted = threading.Event()
    interrupted.set()

    with pytest.raises(Interrupted):
        warmed(tmp_path, interrupted=interrupted)


def test_every_example_is_drawn_once_before_any_is_drawn_twice():
    drawn = [i for batch in draw_batches(10, 4, 5, seed=3) for i in batch]

    assert sorted(drawn[:10]) == sorted(drawn[10:]) == list(range(10))
    assert drawn[:10] != drawn[10:]


def test_the_learning_rate_rises_then_falls_to_a_tenth():
    rates = [learning_rate(step, 100, 1.0) for step in range(100)]

    assert max(rates) == 1.0
    assert rates[0] == pytest.approx(0.2)
    assert rates[-1] == pytest.approx(0.1, abs=0.01)
    assert learning_rate(0, 1, 1.0) == 1.0


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        ([], "no source gives a worked solution"),
        ([WarmupExample([1], [2]), WarmupExample([], [2])], "example 1: 0 prompt and 1 answer"),
        ([WarmupExample([1], [24])], "token ids 1..24; the model has 24"),
        ([WarmupExample([-1], [2])], "token ids -1..2"),
    ],
)
def test_examples_that_cannot_be_trained_on_are_refused_by_number(found, complaint):
    with pytest.raises(BadConfiguration, match=complaint):
        check_examples(found, vocabulary=24)
