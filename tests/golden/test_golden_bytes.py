"""The bytes of every message kind are frozen: who changes what a kind says must raise its SCHEMA."""

import pytest

from broker.codec import decode, encode
from broker.errors import Poison
from broker.messages import EVENTS, Event
from tests.golden.samples import FOLDER, SAMPLES, golden_file

HOW = (
    "the bytes of {kind} changed. Raise {name}.SCHEMA in broker/messages.py (older processes must "
    "refuse it), then run `python -m tests.golden.samples` and commit the new file"
)


def by_kind(sample: Event) -> str:
    return sample.KIND


def test_every_kind_has_a_sample():
    assert sorted(sample.KIND for sample in SAMPLES) == sorted(EVENTS)


@pytest.mark.parametrize("sample", SAMPLES, ids=by_kind)
def test_a_kind_is_written_as_it_was_frozen(sample: Event):
    path = golden_file(sample.KIND, sample.SCHEMA)
    how = HOW.format(kind=sample.KIND, name=type(sample).__name__)

    assert path.exists(), how
    assert encode(sample) == path.read_bytes(), how


@pytest.mark.parametrize("sample", SAMPLES, ids=by_kind)
def test_frozen_bytes_are_read_as_what_they_said(sample: Event):
    found = decode(golden_file(sample.KIND, sample.SCHEMA).read_bytes())

    assert found == sample
    assert type(found) is type(sample)


def test_frozen_bytes_of_other_schemas_are_refused():
    current = {golden_file(kind, event.SCHEMA) for kind, event in EVENTS.items()}
    older = [path for path in FOLDER.glob("*.bin") if path not in current]

    for path in older:
        with pytest.raises(Poison, match="schema"):
            decode(path.read_bytes())


def test_a_change_of_a_field_changes_the_bytes():
    class Changed(type(SAMPLES[-1])):  # type: ignore[misc]
        added: int = 0

    sample = SAMPLES[-1]

    assert encode(Changed(**sample.model_dump())) != encode(sample)
