"""What Postgres cannot hold becomes visible and flagged, in columns and in JSON alike."""

import orjson
from hypothesis import given
from hypothesis import strategies as st

from store.clean import clean_text, json_text

ANY_TEXT = st.text(st.characters(), max_size=30)  # lone surrogates and NUL included
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(ANY_TEXT)
def test_cleaned_text_can_be_stored_and_is_unchanged_when_it_already_could(text: str):
    cleaned = clean_text(text)

    assert "\x00" not in cleaned
    cleaned.encode()
    if "\x00" not in text and not any("\ud800" <= c <= "\udfff" for c in text):
        assert cleaned == text


def test_marks_stand_where_the_characters_stood():
    assert clean_text("5{\x00x") == "5{␀x"
    assert clean_text("hi \ud83d") == "hi \ufffd"
    assert clean_text("hi \ud83d\ude00!") == "hi 😀!"


@given(JSON)
def test_cleaned_json_is_valid_without_nul_and_flagged_when_it_had_to_change(value: object):
    text, changed = json_text(value)

    assert "\\u0000" not in text.replace("\\\\", "")
    loaded = orjson.loads(text)
    if not changed:
        assert orjson.dumps(loaded) == orjson.dumps(value)


def test_numbers_that_json_lacks_are_written_by_name_and_bytes_as_hex():
    text, changed = json_text({"a": float("nan"), "b": [float("-inf")], "c": b"\x01", "d": None})

    assert changed
    assert orjson.loads(text) == {"a": "NaN", "b": ["-Infinity"], "c": "01", "d": None}
    assert json_text({"d": None}) == ('{"d":null}', False)
