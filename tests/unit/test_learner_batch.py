"""Rows and micro-batches: masks by length, one deterministic arrangement."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.arrays import token_array
from learner.batch import micro_batches, rows_of
from learner.layout import lay_out
from tests.builders import a_generation, an_annotation
from tests.learning import a_group, a_row, bytes_array


@given(st.lists(st.integers(0, 60), max_size=40), st.integers(16, 200))
def test_every_row_is_in_one_micro_batch_and_no_two_rows_exceed_the_budget(lengths, budget):
    batches = micro_batches(lengths, budget)

    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        cost = len(batch) * max(lengths[index] for index in batch)
        assert cost <= budget or len(batch) == 1
    assert batches == micro_batches(lengths, budget)


def test_rows_of_similar_length_travel_together():
    assert micro_batches([5, 50, 6, 49], 100) == [[1, 3], [2, 0]]


def test_weights_are_row_weight_times_token_weight():
    group = a_group(
        "00000001-0-0",
        generations=(a_generation(0, tokens=2),),
        annotations=(
            an_annotation(0, advantage=-2.0, weight=0.5, token_weights=bytes_array([1.0, 0.25])),
        ),
    )

    (row,) = rows_of([group], version=0)

    assert row.weights_T().tolist() == [0.5, 0.125]
    assert row.signal() == pytest.approx(1.25)


@pytest.mark.parametrize("finish_reason", ["stop", "length"])
def test_d9_the_mask_comes_from_lengths_not_from_token_ids(finish_reason):
    # Pad and end token have the same id, and the answer holds it twice.
    answer = [7, 0, 8, 0]
    group = a_group(
        "00000001-0-0",
        generations=(
            a_generation(0, tokens=4, token_ids=token_array(answer), finish_reason=finish_reason),
        ),
        annotations=(an_annotation(0),),
    )

    rows = [*rows_of([group], version=0), a_row(9, prompt=2)]
    batch = lay_out(rows, np.ones(2), "cpu")

    assert batch.answer_ids_N[:4].tolist() == answer
    assert batch.line.kept_N.tolist() == [True] * 13
    assert batch.positions_N[:4].tolist() == [3, 4, 5, 6]
    # What is predicted from position p is the token at p + 1; the last token is never an input.
    inputs = [*rows[0].prompt_ids_P.tolist(), 7, 0, 8, *rows[1].prompt_ids_P.tolist()]
    assert batch.packed.input_ids_S[:9].tolist() == inputs
    assert batch.packed.position_ids_S.tolist() == [*range(7), *range(10)]
    assert batch.positions_N[4:].tolist() == list(range(7 + 1, 7 + 10))
