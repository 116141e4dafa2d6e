"""Every kind has one place: a subject that exactly one log stores."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.messages import EVENTS, Event, GroupKey
from broker.packing import pack, subject_matches
from broker.topology import (
    H_BUNDLE,
    H_BUNDLE_SIZE,
    H_COHORT_END,
    H_CUT,
    H_KIND,
    H_OUTCOME,
    H_REASON,
    H_REQUEST_SEQ,
    H_SCORE,
    H_WINDOW,
    H_WRITER,
    LEDGER_KINDS,
    LOG_OF_KIND,
    READERS,
    Log,
    group_from_headers,
    headers,
    kind_subjects,
    log_of,
    log_subjects,
    subject,
)
from tests.builders import a_generated, a_request, a_verdict, a_verified, an_annotated
from tests.golden.samples import SAMPLES

RUN = "run-1"
TOKEN = st.from_regex(r"\A[A-Za-z0-9_-]{1,128}\Z")


def by_kind(sample: Event) -> str:
    return sample.KIND


def test_the_table_names_every_kind_once():
    assert sorted([*LOG_OF_KIND, *LEDGER_KINDS]) == sorted(EVENTS)


@pytest.mark.parametrize("sample", SAMPLES, ids=by_kind)
def test_the_subject_of_a_kind_is_stored_by_its_log_and_by_no_other(sample: Event):
    storing = [
        log
        for log in Log
        if any(subject_matches(s, subject(RUN, sample)) for s in log_subjects(RUN, log))
    ]

    assert storing == [log_of(sample.KIND)]
    assert pack(RUN, sample).log == log_of(sample.KIND)


@pytest.mark.parametrize("sample", SAMPLES, ids=by_kind)
def test_a_kind_is_found_by_its_filter(sample: Event):
    assert subject_matches(kind_subjects(RUN, sample.KIND), subject(RUN, sample))


@pytest.mark.parametrize("sample", SAMPLES, ids=by_kind)
def test_headers_name_kind_and_writer_and_are_one_printable_line_each(sample: Event):
    found = headers(sample)

    assert (found[H_KIND], found[H_WRITER]) == (sample.KIND, sample.writer_id)
    assert all(value.isprintable() and value.isascii() for value in found.values())


def test_dead_letters_are_stored_by_DEAD_alone():
    dead = f"sluice.{RUN}.dead.GENERATED.7"

    assert [
        log for log in Log if any(subject_matches(s, dead) for s in log_subjects(RUN, log))
    ] == [Log.DEAD]


def test_runs_do_not_share_subjects():
    for sample in SAMPLES:
        for log in Log:
            assert not any(
                subject_matches(s, subject("run-2", sample)) for s in log_subjects(RUN, log)
            )


def test_readers_together_take_every_purpose_of_their_log_exactly_once():
    for log in {reader.log for reader in READERS}:
        purposes = [p for reader in READERS if reader.log is log for p in reader.purposes]
        assert sorted(purposes) == ["eval", "probe", "train"]


@given(
    group_id=TOKEN,
    purpose=st.sampled_from(["train", "eval", "probe"]),
    domain=TOKEN,
    request_seq=st.integers(0, 2**53),
    bundle=TOKEN,
    bundle_size=st.integers(1, 9),
)
def test_a_group_can_be_told_from_the_headers_alone(**fields: object):
    group = GroupKey.model_validate(fields)

    assert group_from_headers(headers(a_request(group=group))) == group


@pytest.mark.parametrize(
    "changes",
    [
        {H_REQUEST_SEQ: "seven"},
        {H_REQUEST_SEQ: "-1"},
        {H_BUNDLE: "a b"},
        {H_BUNDLE_SIZE: "0"},
        {"Sluice-Group": "x.>"},
        {"Sluice-Purpose": "test"},
    ],
    ids=str,
)
def test_headers_that_name_no_valid_group_are_a_value_error(changes: dict[str, str]):
    with pytest.raises(ValueError):  # noqa: PT011 - pydantic's and int()'s alike
        group_from_headers(headers(a_request()) | changes)


def test_headers_without_a_group_are_a_key_error():
    with pytest.raises(KeyError):
        group_from_headers({})


def test_the_score_header_is_the_mean_and_absent_when_one_answer_has_none():
    graded = a_verified(scores=(1.0, 0.0, 0.5))
    late = a_verdict(2, None, status="timeout")
    partly = graded.model_copy(update={"verdicts": (*graded.verdicts[:2], late)})

    assert headers(graded)[H_SCORE] == "0.5"
    assert H_SCORE not in headers(partly)


def test_a_failure_says_why_in_a_header_whatever_the_reason_holds():
    failed = a_generated(status="failed", reason="engine\r\nNats-Evil: 1\0☂" + "x" * 999)

    reason = headers(failed)[H_REASON]

    assert headers(failed)[H_OUTCOME] == "failed"
    assert reason.startswith("engine??Nats-Evil")
    assert len(reason) <= 200


def test_window_cut_and_cohort_end_of_a_decision_are_headers():
    decision = an_annotated(window=3, cut=17, cohort_end=True)
    dropped = an_annotated(outcome="dropped").model_copy(update={"window": None})

    found = headers(decision)

    assert (found[H_WINDOW], found[H_CUT], found[H_COHORT_END]) == ("3", "17", "1")
    assert H_WINDOW not in headers(dropped)


def test_packed_size_counts_what_goes_over_the_wire():
    packed = pack(RUN, a_request())
    lines = ["NATS/1.0", *(f"{key}: {value}" for key, value in packed.headers.items()), "", ""]

    assert packed.size == len("\r\n".join(lines).encode()) + len(packed.data)


@pytest.mark.parametrize(
    ("pattern", "subject", "matches"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.b.c", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*.c", "a.b.c", True),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        (">", "a", True),
    ],
)
def test_wildcards_match_as_on_the_server(pattern: str, subject: str, matches: bool):
    assert subject_matches(pattern, subject) is matches
