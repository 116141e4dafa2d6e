"""An update in streams is the update in one: the same rows, the same gradients, whatever runs first."""

import threading
import time
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from learner.batch import Row
from learner.compute import may_stream
from learner.interrupt import Interrupted
from learner.metrics import TokenSums
from learner.settings import LearnerSettings
from learner.streams import Streams, add_up, gradients_of, split_rows
from learner.trainer import Trainer
from tests.learning import a_model, a_row, ragged_rows

ROWS = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40)), min_size=1, max_size=30)


def rows_of(shapes: list[tuple[int, int]]) -> list[Row]:
    return [a_row(tokens, group=group) for group, tokens in shapes]


def a_trainer(folder: Path, **changes: object) -> Trainer:
    settings = LearnerSettings.model_validate({"learning_rate": 1e-2} | changes)
    return Trainer(a_model(folder), settings, dtype=torch.float32, interrupted=threading.Event())


def gradients(trainer: Trainer, rows: list[Row]) -> list[torch.Tensor | None]:
    trainer.begin(rows)
    return [None if p.grad is None else p.grad.clone() for p in trainer.model.parameters()]


@given(ROWS, st.integers(1, 5), st.data())
def test_every_chosen_row_is_in_one_stream(
    shapes: list[tuple[int, int]], streams: int, data: st.DataObject
):
    rows = rows_of(shapes)
    chosen = data.draw(st.lists(st.sampled_from(range(len(rows))), unique=True))

    found = split_rows(rows, chosen, streams)

    assert sorted(index for stream in found for index in stream) == sorted(chosen)
    assert len(found) <= streams
    assert all(stream == sorted(stream) and stream for stream in found)


@given(ROWS, st.integers(2, 4))
def test_groups_stay_together_where_there_are_enough_and_no_stream_is_much_longer(
    shapes: list[tuple[int, int]], streams: int
):
    rows = rows_of(shapes)
    groups = {row.group for row in rows}

    found = split_rows(rows, range(len(rows)), streams)

    of_streams = [{rows[index].group for index in stream} for stream in found]
    if len(groups) >= streams:
        assert sum(map(len, of_streams)) == len(groups)
        pieces = [sum(row.length for row in rows if row.group == group) for group in groups]
    else:
        pieces = [row.length for row in rows]
    tokens = [sum(rows[index].length for index in stream) for stream in found]
    assert len(found) == min(streams, len(pieces))
    assert max(tokens) - min(tokens) <= max(pieces)


@pytest.mark.parametrize("micro_batch_tokens", [24, 16_384])
@pytest.mark.parametrize("loss", ["ppo_clip", "gspo"])
@pytest.mark.parametrize("threads", [2, 3, 5])
def test_gradients_and_metrics_are_those_of_one_stream(
    tmp_path: Path, loss: str, threads: int, micro_batch_tokens: int
):
    options = {"loss": {"name": loss}, "micro_batch_tokens": micro_batch_tokens}
    rows = ragged_rows(1)
    one, several = a_trainer(tmp_path, **options), a_trainer(tmp_path, **options, threads=threads)

    for left, right in zip(gradients(one, rows), gradients(several, rows), strict=True):
        assert left is not None
        assert right is not None
        np.testing.assert_allclose(right, left, atol=1e-5)
    left, right = one.step(rows).metrics, several.step(rows).metrics
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert right[name] == (None if value is None else pytest.approx(value, rel=1e-4, abs=1e-6))


@pytest.mark.parametrize(
    "options", [{}, {"activation_checkpointing": True}, {"updates_per_step": 2}]
)
def test_which_stream_is_late_makes_no_difference_to_the_bit(
    tmp_path: Path, options: dict[str, object]
):
    rows, found = ragged_rows(2, count=24), []
    for late in (None, "MainThread", "stream_0", "stream_1"):

        def delay(*_: object, late: str | None = late) -> None:
            if threading.current_thread().name == late:
                time.sleep(0.02)

        trainer = a_trainer(tmp_path, threads=3, micro_batch_tokens=64, **options)
        trainer.model.model.layers[0].register_forward_pre_hook(delay)
        assert trainer.step(rows).skipped == ""
        found.append(trainer.state())

    assert found.count(found[0]) == len(found)


def test_an_interruption_of_one_stream_leaves_everything_as_before(tmp_path: Path):
    trainer = a_trainer(tmp_path, threads=2)
    before = trainer.state()

    def interrupt(*_: object) -> None:
        if threading.current_thread().name.startswith("stream"):
            trainer.interrupted.set()

    trainer.model.model.layers[0].register_forward_pre_hook(interrupt)
    with pytest.raises(Interrupted):
        trainer.step(ragged_rows(1))

    assert trainer.state() == before
    assert all(p.grad is None for p in trainer.model.parameters())


def test_streams_compute_at_once_each_on_one_core_and_give_the_caller_its_cores_back():
    meeting, before = threading.Barrier(3), torch.get_num_threads()
    torch.set_num_threads(3)
    try:

        def compute(number: int, part: str) -> tuple[int, str, int]:
            meeting.wait(10)
            return number, part, torch.get_num_threads()

        found = Streams(3).compute(compute, ["a", "b", "c"])

        assert found == [(0, "a", 1), (1, "b", 1), (2, "c", 1)]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_parameters_that_are_frozen_are_left_alone(tmp_path: Path):
    trainer = a_trainer(tmp_path, threads=2)
    frozen = trainer.model.model.layers[0].mlp.up_proj.weight.requires_grad_(False)
    before = frozen.clone()

    assert trainer.step(ragged_rows(1)).skipped == ""

    assert torch.equal(frozen, before)


def test_gradients_are_laid_out_as_their_parameters_in_memory_of_their_own():
    turned, x, y = (torch.ones(2, 3, requires_grad=True) for _ in range(3))
    loss = (turned.T.contiguous() * torch.arange(6.0).view(3, 2)).sum() + (x + y).sum()

    found = gradients_of(loss, [turned, x, y])

    assert all(g is not None and g.stride() == (3, 1) for g in found)
    assert len({g.data_ptr() for g in found if g is not None}) == 3
    assert turned.grad is None
    assert found[0].tolist() == [[0, 2, 4], [1, 3, 5]]


@pytest.mark.parametrize(
    ("changes", "rope", "expected"),
    [({}, None, True), ({"compile": True}, None, False), ({}, "longrope", False)],
)
def test_passes_that_would_share_state_do_not_stream(
    tmp_path: Path, changes: dict[str, object], rope: str | None, expected: bool
):
    model = a_model(tmp_path)
    if rope is not None:
        model.config.rope_parameters = {"rope_type": rope}

    assert may_stream(model, LearnerSettings.model_validate(changes)) is expected


@pytest.mark.parametrize("failing", [0, 1])
def test_all_streams_have_ended_when_one_has_failed(failing: int):
    ended: list[int] = []

    def compute(number: int, part: int) -> None:
        if number == failing:
            raise ZeroDivisionError
        time.sleep(0.1)
        ended.append(number)

    with pytest.raises(ZeroDivisionError):
        Streams(2).compute(compute, [0, 1])

    assert ended == [1 - failing]


def test_parameters_that_a_stream_did_not_reach_add_nothing():
    one, two = torch.tensor(1.0), torch.tensor(2.0)

    total = add_up(add_up(None, [one, None, None]), [two, two, None])

    assert total == [torch.tensor(3.0), two, None]


def test_sums_of_streams_are_those_of_all_their_tokens():
    left = TokenSums(**{f.name: 2 for f in fields(TokenSums)} | {"ratio_min": 0.5, "ratio_max": 3})
    right = TokenSums(**{f.name: 5 for f in fields(TokenSums)} | {"ratio_min": 0.7, "ratio_max": 4})

    left.include(right)

    expected = {f.name: 7 for f in fields(TokenSums)} | {"ratio_min": 0.5, "ratio_max": 4}
    assert vars(left) == expected
