"""Events become rows: what each log says, and nothing derived."""

import hashlib

import msgpack
import numpy as np
import pytest

from broker.arrays import logprob_array, token_array
from broker.codec import decode, encode
from broker.errors import Poison
from broker.messages import ChatTurn, DroppedGroup, ReaderAdvanced, RunStarted, StepCommitted
from store.encode import COLUMNS
from store.intake import UNREAD
from store.merge import KEYS
from store.row import End, Row
from store.rows import rows_of
from tests.builders import (
    AT_US,
    WRITER,
    a_generated,
    a_generation,
    a_key,
    a_request,
    a_sample,
    a_verified,
    an_annotated,
)
from tests.store_world import COMMON, RUN, a_small_run, supervision


def only(rows: list[Row], table: str) -> list[dict[str, object]]:
    return [dict(row.values) for row in rows if row.table == table]


def test_every_row_of_a_run_fits_its_table_and_names_its_key():
    world = a_small_run()

    rows = [
        row
        for events in world.logs.values()
        for place, event in enumerate(events, start=1)
        for row in rows_of(RUN, place, event)
    ]

    assert {row.table for row in rows} == set(KEYS)
    for row in rows:
        assert set(row.values) <= set(COLUMNS[row.table].names), row.table
        assert all(row.values[name] is not None for name in KEYS[row.table]), row.table


def test_a_request_names_its_sample_its_prompt_and_its_place():
    request = a_request("00000007-0-1", attempt=1, sample=a_sample("math:1:3", difficulty=2.5))

    rows = rows_of(RUN, 12, request)

    (group,) = only(rows, "prompt_group")
    (prompt,) = only(rows, "rendered_prompt")
    (sample,) = only(rows, "sample")
    assert (group["state"], group["requests_seq"], group["request_seq"]) == ("requested", 12, 7)
    assert group["requested_at"] == AT_US
    assert group["prompt_sha256"] == prompt["prompt_sha256"]
    assert prompt["token_ids"] == np.array([5, 6, 7], dtype="<i4").tobytes()
    assert (sample["sample_key"], sample["difficulty"]) == ("math:1:3", 2.5)


def test_a_chat_prompt_is_stored_as_the_text_of_its_turns():
    turns = (ChatTurn(role="user", content="1+1?"),)

    (sample,) = only(rows_of(RUN, 1, a_request(sample=a_sample(prompt=turns))), "sample")

    assert sample["prompt"] == '[{"role":"user","content":"1+1?"}]'
    assert sample["prompt_is_chat"] is True


def test_an_answer_keeps_its_tokens_and_counts_its_finite_log_probabilities():
    answer = a_generation(
        0, tokens=3, logprobs=logprob_array([-1.0, float("nan"), -3.0]), text="five"
    )

    rows = rows_of(RUN, 3, a_generated(a_request(size=1), generations=(answer,)))

    (row,) = only(rows, "generation")
    assert row["token_ids"] == answer.token_ids.data
    assert (row["tokens"], row["logprob_count"], row["logprob_mean"]) == (3, 2, -2.0)
    assert row["text_sha256"] == hashlib.sha256(b"five").digest()
    assert row["version_spans"] == [(0, 0, 3)]


def test_each_answer_has_the_mean_of_its_own_log_probabilities():
    values = [[-1.0, -2.0], [], [float("inf"), float("-inf")], [-4.0], [-1.0, float("nan"), -5.0]]
    answers = [
        a_generation(
            index,
            tokens=len(found),
            token_ids=token_array([0] * len(found)),
            logprobs=logprob_array(found),
        )
        for index, found in enumerate(values)
    ]

    rows = only(rows_of(RUN, 1, a_generated(generations=tuple(answers))), "generation")

    found = [(row["logprob_count"], row["logprob_mean"]) for row in rows]
    assert found == [(2, -1.5), (0, None), (0, None), (1, -4.0), (2, -3.0)]


def test_an_answer_without_any_finite_log_probability_has_no_mean():
    answer = a_generation(0, tokens=1, logprobs=logprob_array([float("-inf")]))
    empty = a_generation(1, tokens=0, token_ids=token_array([]), logprobs=logprob_array([]))

    rows = only(rows_of(RUN, 1, a_generated(generations=(answer, empty))), "generation")

    assert [(row["logprob_count"], row["logprob_mean"]) for row in rows] == [(0, None), (0, None)]


def test_a_train_group_goes_on_when_verified_and_an_evaluation_ends():
    train = a_verified(a_request("00000001-0-0"))
    key = a_key("v000000-math-00000-0", purpose="eval")
    measured = a_verified(a_request(group=key), (1.0,))

    (going_on,) = only(rows_of(RUN, 1, train), "prompt_group")
    (ended,) = only(rows_of(RUN, 2, measured), "prompt_group")

    assert (going_on["state"], going_on["ends"], going_on.get("terminal_at")) == (
        "verified",
        0,
        None,
    )
    assert (ended["state"], ended["ends"]) == ("measured", End.MEASURED)
    assert ended["terminal_at"] is not None


def test_a_decision_ends_a_group_unless_it_is_admitted():
    admitted = an_annotated()
    dropped = an_annotated(
        outcome="dropped", reason="filtered:equal", window=None, window_size=None,
        window_index=None, cut=None, generations=(),
    )  # fmt: skip

    (open_group,) = only(rows_of(RUN, 1, admitted), "prompt_group")
    (ended,) = only(rows_of(RUN, 1, dropped), "prompt_group")

    assert (open_group["state"], open_group["window_no"]) == ("annotated", 1)
    assert (ended["state"], ended["drop_reason"]) == ("dropped", "filtered:equal")
    assert ended["ends"] == End.DROPPED_BY_POLICY


def test_a_skipped_step_ends_its_groups_as_dropped():
    event = StepCommitted(
        **COMMON, step=4, status="skipped", reason="non-finite gradient", version=3, digest="d",
        dropped=(DroppedGroup(group_id="g", stream_seq=9, reason="nonfinite", staleness=1),),
        metrics={"grad_norm": None},
    )  # fmt: skip

    rows = rows_of(RUN, 8, event)

    (step,) = only(rows, "learner_step")
    (group,) = only(rows, "prompt_group")
    assert (step["status"], step["weights_version"], step["committed_seq"]) == ("skipped", 3, 8)
    assert (group["state"], group["drop_reason"], group["dropped_step"]) == (
        "dropped",
        "nonfinite",
        4,
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [("labeled", "yes"), ("visits", "-1"), ("visits", "٣"), ("confidence", "1.5"),
     ("solve_rate", "nan"), ("solve_rate", "1_0")],
)  # fmt: skip
def test_supervision_that_its_column_cannot_hold_is_refused(field: str, value: str):
    with pytest.raises(Poison, match=f"supervision_changed.{field}.new is"):
        rows_of(RUN, 1, supervision("math:1:1", field, None, value))


def test_a_time_beyond_the_calendar_is_refused_not_fatal():
    with pytest.raises(Poison, match="group_requested: cannot be stored"):
        rows_of(RUN, 1, a_request(at_us=2**62))


def test_a_configuration_that_is_no_json_is_refused():
    event = RunStarted(**COMMON, name="n", config="{", config_sha256="", seed=0, versions={})

    with pytest.raises(Poison, match="config is not JSON"):
        rows_of(RUN, 1, event)


def test_what_is_said_about_the_logs_leaves_no_row():
    event = ReaderAdvanced(writer_id=WRITER, at_us=1, reader="policy", log="VERIFIED", sequence=3)

    assert rows_of(RUN, 1, event) == []


def test_what_the_recorder_leaves_unread_changes_no_row():
    world = a_small_run()

    for log, unread in UNREAD.items():
        for place, event in enumerate(world.logs[log], start=1):
            read = decode(encode(event), unread=unread)
            assert rows_of(RUN, place, read) == rows_of(RUN, place, event)


def test_unread_fields_must_be_there_all_the_same():
    envelope = msgpack.unpackb(encode(a_verified()))
    del envelope["body"]["generations"]

    with pytest.raises(Poison, match="generations"):
        decode(msgpack.packb(envelope), unread={"generations": ()})
