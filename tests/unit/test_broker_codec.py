"""Whatever bytes arrive, decoding gives an event or Poison; whatever is published can be read."""

import math
from datetime import datetime

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from broker.codec import decode, encode
from broker.errors import Poison
from broker.messages import EVENTS, Event, Incident
from broker.messages.base import MAX_DEPTH
from tests.builders import AT_US, WRITER, a_request, a_sample, a_verified, an_annotated
from tests.golden.samples import SAMPLES

GOOD = encode(a_request())


def envelope(**changes: object) -> bytes:
    packed = msgpack.packb(msgpack.unpackb(GOOD, use_list=False) | changes)
    assert packed is not None
    return packed


def body(**changes: object) -> bytes:
    return envelope(body=msgpack.unpackb(GOOD, use_list=False)["body"] | changes)


def without(field: str) -> bytes:
    found = dict(msgpack.unpackb(GOOD, use_list=False)["body"])
    del found[field]
    return envelope(body=found)


HOSTILE = {
    "nothing": b"",
    "a bare number": b"\x07",
    "text": b"hello",
    "a trailing byte": GOOD + b"\0",
    "the first half": GOOD[: len(GOOD) // 2],
    "2,000 nested arrays": b"\x91" * 2000 + b"\0",
    "a header that claims 4 billion items": b"\xdd\xff\xff\xff\xff",
    "a header that claims a 4 GiB text": b"\xdb\xff\xff\xff\xff",
    "a map with integer keys": envelope(body={1: 2}),
    "a list as envelope": msgpack.packb(["kind", "schema", "body"]),
    "no kind": msgpack.packb({"schema": 1, "body": {}}),
    "one key too many": envelope(extra=1),
    "an unknown kind": envelope(kind="group_teleported"),
    "a kind that is no text": envelope(kind=[1]),
    "a newer schema": envelope(schema=EVENTS["group_requested"].SCHEMA + 1),
    "a schema that is text": envelope(schema="1"),
    "a body that is no map": envelope(body=[1, 2]),
    "a missing field": without("sample"),
    "an unknown field": body(surprise=1),
    "a number where text belongs": body(prompt_text=7),
    "text where a number belongs": body(draw="7"),
    "a float where a count belongs": body(draw=1.0),
    "a negative count": body(attempt=-1),
    "a subject wildcard as group id": body(
        group={**msgpack.unpackb(GOOD, use_list=False)["body"]["group"], "group_id": "a.>"}
    ),
    "tokens that are a list": body(prompt_ids=[1, 2, 3]),
    "tokens shorter than they claim": body(
        prompt_ids={"dtype": "<i4", "shape": (3,), "data": b"\0" * 8}
    ),
    "an extension type": body(prompt_text=msgpack.ExtType(5, b"x")),
    "a timestamp": body(at_us=msgpack.Timestamp(1)),
    "invalid UTF-8": GOOD.replace(b"1+1=", b"\xff\xfe\xfd\xfc"),
    "infinity": encode(a_request(sample=a_sample(difficulty=0.5))).replace(
        msgpack.packb(0.5), msgpack.packb(math.inf)
    ),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_bytes_that_are_not_a_message_are_poison_with_a_reason(data: bytes):
    with pytest.raises(Poison) as caught:
        decode(data)
    with pytest.raises(Poison) as stepping_over:
        decode(data, unread={"mixture": None})

    assert min(len(str(found.value)) for found in (caught, stepping_over)) > 10


def test_what_nobody_reads_is_stepped_over_whatever_is_in_it():
    known = {"prompt_text": "", "mixture": None}
    garbled = body(prompt_text=[{1: b"\xff"}, msgpack.ExtType(5, b"x")])

    assert decode(garbled, unread=known) == a_request(prompt_text="", mixture=None)


@pytest.mark.parametrize("key", [1, b"kind", (1, 2)])
def test_a_key_that_is_no_text_is_poison_whoever_reads(key: object):
    for where in ({key: 0}, {"kind": "group_requested", "schema": 1, "body": {key: 0}}):
        for unread in (None, {"mixture": None}):
            with pytest.raises(Poison):
                decode(msgpack.packb(where), unread=unread)


@given(st.binary(max_size=300))
def test_random_bytes_are_poison_and_nothing_else(data: bytes):
    with pytest.raises(Poison):
        decode(data)
    with pytest.raises(Poison):
        decode(data, unread={"generations": ()})


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_message_with_flipped_bytes_is_an_event_or_poison(data: st.DataObject):
    sample = data.draw(st.sampled_from(SAMPLES))
    damaged = bytearray(encode(sample))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))

    try:
        assert isinstance(decode(bytes(damaged)), Event)
    except Poison:
        return


def an_incident(**changes: object) -> Incident:
    fields = {"writer_id": WRITER, "at_us": AT_US, "kind": "k", "role": "r", "detail": ""}
    return Incident.model_validate(fields | changes)


@given(st.text())
def test_any_text_travels(text: str):
    event = an_incident(detail=text)

    assert decode(encode(event)) == event


def test_nul_and_emoji_travel_and_a_lone_surrogate_is_replaced_once():
    event = an_incident(detail="a\0b 😀 hi \ud83d!")

    found = decode(encode(event))

    assert found == event
    assert isinstance(found, Incident)
    assert found.detail == "a\0b 😀 hi \ufffd!"


def test_an_emoji_split_in_two_surrogates_becomes_whole():
    assert an_incident(detail="\ud83d\ude00").detail == "😀"


def test_floats_travel_in_double_precision():
    event = a_request(sample=a_sample(difficulty=0.1))

    found = decode(encode(event))

    assert found == event


@pytest.mark.parametrize(
    "value",
    [
        2**64,
        datetime(2026, 1, 1),
        np.zeros(2),
        np.float32(1),
        "\ud83d",
        {"x"},
        object(),
    ],
    ids=["2^64", "naive datetime", "array", "numpy number", "lone surrogate", "set", "object"],
)
def test_what_msgpack_cannot_carry_is_poison_where_it_is_packed(value: object):
    event = a_request(sample=a_sample(options={"value": value}))

    with pytest.raises(Poison, match="group_requested"):
        encode(event)


def nested(depth: int) -> object:
    value: object = 0
    for _ in range(depth):
        value = [value]
    return value


def test_free_fields_nest_as_deep_as_they_say_and_no_deeper():
    event = a_request(sample=a_sample(options={"deep": nested(MAX_DEPTH - 1)}))

    assert decode(encode(event)) == event
    for depth in (MAX_DEPTH, 2000):
        with pytest.raises(ValidationError, match="nested deeper"):
            a_sample(options={"deep": nested(depth)})


def test_a_message_nested_as_deep_as_msgpack_allows_is_poison():
    sample = {
        **msgpack.unpackb(GOOD, use_list=False)["body"]["sample"],
        "options": {"d": nested(500)},
    }

    with pytest.raises(Poison, match="nested deeper"):
        decode(body(sample=sample))


def test_tuples_inside_free_fields_come_back_as_the_lists_they_were_made():
    event = a_request(sample=a_sample(options={"list": [1, [2]], "tuple": (1,)}))

    assert decode(encode(event)) == event


def test_every_kind_refuses_another_schema_version():
    for sample in SAMPLES:
        data = msgpack.packb(
            {"kind": sample.KIND, "schema": EVENTS[sample.KIND].SCHEMA + 1, "body": {}}
        )
        assert data is not None
        with pytest.raises(Poison, match="this process speaks"):
            decode(data)


def test_encoding_is_the_same_bytes_every_time():
    for event in (a_request(), a_verified(), an_annotated()):
        assert encode(event) == encode(decode(encode(event)))
