"""Multiple choice: the letter that a response settles on, and none where it settles on none."""

import time

import pytest

from tests.verifier_data import rows
from workers.verifiers.choice import Choice
from workers.verifiers.protocol import Ungradable

SETTLED = [
    ("Answer: B. A nice result", "B"),
    ("The answer is (C).", "C"),
    ("the answer is c", "C"),
    ("<answer>D</answer>", "D"),
    ("<ANSWER> (D) </ANSWER> done", "D"),
    (r"\boxed{A} no, wait: \boxed{B}", "B"),
    (r"\boxed{\textbf{(C)}}", "C"),
    (r"\boxed{C) 42 apples}", "C"),
    ("Answer: A. On reflection, answer: C", "C"),
    ("(B)", "B"),
    ("B.", "B"),
    ("**D**", "D"),
    ("I choose option C, since it fits.", "C"),
    ("<think>The answer is A</think> The answer is B", "B"),
    ("Respuesta: B", "B"),
    ("答案是 C。", "C"),
    ("The answer is a matter of taste.", None),
    ("A nice result.", None),
    ("Answer: A or B", None),
    ("Answer: A, B", None),
    ("<answer>A and C</answer>", None),
    ("The answer is E.", None),
    (r"\boxed{A", None),
    ("I think it is a cell.", None),
    ("", None),
]


@pytest.mark.parametrize(("response", "letter"), SETTLED)
def test_the_letter_that_a_response_settles_on(response: str, letter: str | None):
    finding = Choice().grade(response, "B", {"options": "A-D"})

    assert finding.extracted == letter
    assert finding.status == ("no_answer" if letter is None else "ok")
    assert finding.score == float(letter == "B")


def test_every_labelled_row_of_the_shared_pairs_comes_out_right():
    pairs = rows("verifier_pairs/choice.jsonl")

    found = [
        Choice()
        .grade(str(row["response"]), str(row["gold"]), {"options": row["options"]})
        .extracted
        for row in pairs
    ]

    assert found == [row["right"] for row in pairs]


def test_the_items_options_say_which_letters_there_are():
    assert Choice().grade("Answer: E", "E", {"options": "A-E"}).score == 1.0
    assert Choice().grade("Answer: E", "E", {"options": ["u", "v", "w", "x", "y"]}).score == 1.0
    assert Choice().grade("Answer: E", "E", {"options": 5}).score == 1.0
    with pytest.raises(Ungradable, match="E"):
        Choice().check("E", {"options": "A-D"})


@pytest.mark.parametrize(
    "response",
    ["<answer>" * 120_000, "answer: " * 120_000, r"\boxed{" + "(" * 900_000, "pick " * 200_000],
)
def test_a_response_of_a_megabyte_is_searched_in_bounded_time(response: str):
    started = time.process_time()

    assert Choice().grade(response, "A", {}).score == 0.0
    assert time.process_time() - started < 3.0
