"""Grading a file: one row per line, in order; a wrong answer is a 0, an unreadable line an error."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from broker.errors import BadConfiguration
from tests.verifier_data import rows
from workers.verifiers.grade import grade_file
from workers.verifiers.regrade import KINDS, OTHER, Flip, Flips
from workers.verifiers.together import together


def graded(path: Path, *lines: object, verifier: str = "math") -> list[dict[str, object]]:
    file = path / "answers.jsonl"
    file.write_text(
        "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines),
        encoding="utf-8",
    )
    return list(grade_file(file, verifier))


def test_each_line_gets_a_row_with_its_id_in_order(tmp_path: Path):
    found = graded(
        tmp_path,
        {"id": "a", "gold": "1/2", "response": r"\boxed{.5}"},
        "",
        {"id": 7, "gold": 2, "response": r"\boxed{3}"},
        {"gold": "2", "response": "no idea"},
        {"id": "d", "gold": "2", "response": " 2", "verifier": "exact"},
        {"id": "e", "gold": "see figure", "response": r"\boxed{3}"},
        {"id": "f", "gold": "1", "response": "\\boxed{1} \ud800"},
    )

    assert [row["id"] for row in found] == ["a", 7, 4, "d", "e", "f"]
    assert [row["score"] for row in found] == [1.0, 0.0, 0.0, 1.0, None, 1.0]
    assert [row["status"] for row in found] == ["ok", "ok", "no_answer", "ok", "ungradable", "ok"]
    assert found[0]["answer_key"] == "1/2"


def test_a_line_carries_what_its_own_verifier_needs(tmp_path: Path):
    program = "```python\ndef f(x):\n    return x + 1\n```"
    tests = [{"expr": "f(1)", "expected": 2}]
    found = graded(
        tmp_path,
        {"response": program, "verifier": "code", "tests": tests},
        {"response": program, "verifier": "code", "test_cases": [{"expr": "f(1)", "expected": 3}]},
        {"response": "I cannot.", "verifier": "code", "tests": tests},
        {"response": "Answer: d", "gold": "D", "verifier": "choice", "options": "A-D"},
        {"response": "Answer: d", "gold": "D", "verifier": "choice", "options": ["x", "y"]},
        {
            "response": "Ann is a knight, Bob is a knave",
            "gold": [True, False],
            "names": ["Ann", "Bob"],
            "verifier": "knights_knaves",
        },
    )

    assert [row["score"] for row in found] == [1.0, 0.0, 0.0, 1.0, None, 1.0]
    assert [row["status"] for row in found][2:5] == ["no_answer", "ok", "ungradable"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", ":2: not JSON"),
        ("[1]", ":2: expected an object"),
        ({"id": 1, "gold": "1"}, ":2: response: expected text"),
        ({"response": "1", "verifier": "nonsense"}, r":2: .*nonsense"),
        ({"response": "1", "verifier": 3}, ":2: verifier"),
        ({"response": "1", "verifier": "./mine.py:Mine"}, ":2: verifier './mine.py:Mine' is code"),
    ],
)
def test_a_line_that_cannot_be_read_is_named_by_number(tmp_path: Path, line: object, reason: str):
    with pytest.raises(BadConfiguration, match=reason):
        graded(tmp_path, {"gold": "1", "response": "1"}, line)


def test_of_many_kinds_of_flips_the_later_ones_are_counted_together():
    flips = Flips()
    flip = Flip("g", 0, "1", "text", "0", "1", None, None, "")

    for number in range(1000):
        flips.add(replace(flip, after=f"{number}"))

    assert sum(flips.kinds.values()) == 1000
    assert flips.kinds[OTHER] == 1000 - KINDS
    assert len(flips.examples) == KINDS + 1


async def test_when_one_of_many_fails_the_others_end_before_it_is_told():
    ended: list[int] = []

    async def wait(number: int) -> int:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(number)
        return number

    async def fail() -> int:
        await asyncio.sleep(0)
        raise BadConfiguration("no")

    with pytest.raises(BadConfiguration, match=r"^no$"):
        await together([wait(1), fail(), wait(2)])
    assert sorted(ended) == [1, 2]


def test_a_missing_file_and_an_unknown_verifier_are_refused(tmp_path: Path):
    with pytest.raises(BadConfiguration, match="cannot be opened"):
        list(grade_file(tmp_path / "nowhere.jsonl", "math"))
    with pytest.raises(BadConfiguration, match="expected one of"):
        graded(tmp_path, {"gold": "1", "response": "1"}, verifier="nonsense")


def test_the_shared_pairs_come_out_right_through_the_graders(tmp_path: Path):
    pairs = rows("verifier_pairs/math.jsonl")

    found = graded(tmp_path, *pairs)

    wrong = [
        pair["id"]
        for pair, row in zip(pairs, found, strict=True)
        if pair["right"] is not None and row["score"] != float(bool(pair["right"]))
    ]
    assert wrong == []
