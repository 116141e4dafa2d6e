"""Rows in COPY's binary form: what a column cannot hold is refused by name, what is changed is flagged."""

import pytest

from store.encode import BEGIN, COLUMNS, END, copied

VERDICT = {
    "run_id": "r", "group_id": "g", "generation_index": 0, "event_id": 0, "verifier": "exact",
    "verifier_version": "1", "status": "ok", "score": 1.0, "extracted": "5", "detail": "",
    "components": {}, "latency_ms": 0.5, "verified_at": 946_684_800_000_001,
}  # fmt: skip


def read(table: str, block: bytes) -> list[dict[str, bytes | None]]:
    """What Postgres sees of each row, by column."""
    names, at, rows = COLUMNS[table].names, len(BEGIN), []
    assert block.startswith(BEGIN)
    while block[at : at + 2] != END:
        assert int.from_bytes(block[at : at + 2]) == len(names)
        at += 2
        row: dict[str, bytes | None] = {}
        for name in names:
            length = int.from_bytes(block[at : at + 4], signed=True)
            at += 4
            row[name] = None if length < 0 else block[at : at + length]
            at += max(0, length)
        rows.append(row)
    assert block[at:] == END
    return rows


def test_each_row_is_flagged_for_its_own_values_alone():
    changes = [
        {}, {"components": {"k\x00": 1}}, {"latency_ms": float("inf")}, {"detail": "\ud83d"}, {},
        {"score": float("nan")},
    ]  # fmt: skip

    rows = read("verdict", copied(COLUMNS["verdict"], [VERDICT | change for change in changes]))

    assert [row["cleaned"] for row in rows] == [b"\0", b"\1", b"\1", b"\1", b"\0", b"\1"]
    assert rows[1]["components"] == b"\1" + '{"k␀":1}'.encode()
    assert rows[2]["latency_ms"] is rows[5]["score"] is None
    assert rows[3]["detail"] == "\ufffd".encode()
    assert rows[4] == rows[0]


def test_all_rows_are_flagged_when_all_say_the_same_that_had_to_be_changed():
    rows = read("verdict", copied(COLUMNS["verdict"], [VERDICT | {"detail": "a\x00"}] * 2))

    assert [(row["detail"], row["cleaned"]) for row in rows] == [("a␀".encode(), b"\1")] * 2


def test_what_a_row_does_not_say_is_null_whatever_the_others_say():
    steps = [{"metrics": {"loss": 1.0}}, {"metrics": None}, {}, {"metrics": {"loss": 2.0}}, {}]

    rows = read(
        "learner_step",
        copied(
            COLUMNS["learner_step"],
            [
                {"run_id": "r", "step": n, "status": "planned"} | step
                for n, step in enumerate(steps)
            ],
        ),
    )

    assert [row["metrics"] for row in rows] == [
        b'\1{"loss":1.0}', None, None, b'\1{"loss":2.0}', None
    ]  # fmt: skip


def test_time_counts_in_microseconds_from_the_year_2000():
    (row,) = read("verdict", copied(COLUMNS["verdict"], [VERDICT]))

    assert row["verified_at"] == (1).to_bytes(8)


@pytest.mark.parametrize(
    ("name", "value"),
    [("generation_index", 2**31), ("generation_index", 1.5), ("event_id", -(2**63) - 1),
     ("detail", 7), ("detail", []), ("score", "1"), ("verified_at", "now"),
     ("components", {1: object()})],
)  # fmt: skip
def test_a_value_that_is_not_of_its_column_is_refused_by_name(name: str, value: object):
    rows = [VERDICT, VERDICT | {name: value}]

    with pytest.raises(ValueError, match=f"^{name}: "):
        copied(COLUMNS["verdict"], rows)


def test_a_flag_is_true_or_false():
    with pytest.raises(ValueError, match=r"^shadow: "):
        copied(COLUMNS["annotation"], [{"shadow": "yes"}])
