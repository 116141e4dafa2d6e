"""Reasoning Gym's own scorers: a full score is right, anything less is wrong, and no answer is executed."""

import inspect
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

from workers.verifiers.protocol import Ungradable
from workers.verifiers.reasoning_gym import FORMULA, LITERAL, ReasoningGym, is_formula, literal

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    library = pytest.importorskip("reasoning_gym")

TASKS = (
    "basic_arithmetic",
    "countdown",
    "knights_knaves",
    "leg_counting",
    "string_insertion",
    "n_queens",
)


def item(task: str, index: int = 0) -> dict[str, Any]:
    return {"dataset": task, "config": {}, "seed": 7, "index": index}


def entry(task: str, index: int = 0) -> dict[str, Any]:
    return library.create_dataset(task, seed=7)[index]


def score(task: str, answer: str, **options: Any) -> float | None:
    return ReasoningGym(**options).grade(f"So <answer>{answer}</answer>", "-", item(task)).score


@pytest.mark.parametrize("task", TASKS)
def test_the_stored_answer_of_a_task_is_right_and_others_are_not(task: str):
    assert score(task, entry(task)["answer"]) == 1.0
    assert score(task, "no idea") == 0.0
    assert score(task, entry(task)["answer"] + " or 3") == 0.0


def test_what_a_scorer_pays_for_wrong_answers_is_not_paid():
    question = entry("knights_knaves")
    half = re.sub(r"(knight|knave|\w+)\.$", "nothing.", question["answer"])

    assert score("leg_counting", f"{entry('leg_counting')['answer']} 1") == 0.0
    assert 0 < score("leg_counting", f"{entry('leg_counting')['answer']} 1", score="own") < 1
    assert score("knights_knaves", half) == 0.0


def test_countdown_takes_any_solution_and_no_invented_numbers():
    numbers, target = (entry("countdown")["metadata"][name] for name in ("numbers", "target"))

    assert score("countdown", str(target)) == 0.0
    assert score("countdown", f"{target} + {numbers[0]} - {numbers[0]}") == 0.0
    assert score("countdown", f"({entry('countdown')['answer']})*1") == 0.0
    assert score("countdown", f"({entry('countdown')['answer']})") == 1.0


def test_puzzle24_must_use_its_own_numbers_and_give_24_exactly():
    own = sorted(entry("puzzle24")["metadata"]["numbers"])
    assert own != [1, 1, 4, 6]

    assert score("puzzle24", entry("puzzle24")["answer"]) == 1.0
    assert score("puzzle24", "4*6*1*1") == 0.0
    assert score("puzzle24", "4*6 + 1/2 + 0") == 0.0


@pytest.mark.parametrize(
    ("task", "wrong"),
    [
        ("coin_flip", "0"),
        ("game_of_life_halting", "perhaps"),
        ("gsm_symbolic", "-{}"),
        ("gsm_symbolic", "{} or 17"),
        ("knights_knaves", "not {}"),
        ("sokoban", "{} or so"),
        ("quantum_lock", "{} or so"),
        ("prime_factorization", "{} and more"),
    ],
)
def test_a_full_score_for_a_wrong_answer_is_corrected(task: str, wrong: str):
    for index in range(3):
        gold = entry(task, index)["answer"]
        verifier = ReasoningGym(tag=None)

        assert verifier.grade(gold, "-", item(task, index)).score == 1.0
        assert verifier.grade(wrong.format(gold), "-", item(task, index)).score == 0.0


def wide(text: str) -> str:
    """The same in full-width letters, which Python reads as the usual ones."""
    return "".join(chr(ord(one) + 0xFEE0) if one.isalpha() else one for one in text)


def spelled(text: str) -> str:
    """An expression without quotes that gives the text."""
    return wide(f"bytes(({','.join(str(ord(one)) for one in text)},)).decode()")


@pytest.mark.parametrize("task", sorted(FORMULA | LITERAL))
@pytest.mark.parametrize("kind", ["solved", "own"])
def test_an_answer_is_never_executed(task: str, kind: str, tmp_path: Path):
    mark = tmp_path / "mark"
    touch = f"open('{mark}', 'w')"
    for attack in (
        touch,
        f"__import__('pathlib').Path('{mark}').touch()",
        f"exec({touch!r})",
        f"[open(x, 'w') for x in ['{mark}']]",
        "exit()",
        "().__class__.__base__.__subclasses__()",
        wide("exit()"),
        wide("open") + f"('{mark}', 'w')",
        f"{wide('exec')}({spelled(touch)})",
        # A string is a literal, and sympy evaluates the text of a string.
        repr(touch),
        repr(f"exec({touch!r})"),
        f"[{touch!r}]",
        f"x + {touch!r}",
    ):
        assert score(task, attack, score=kind) in (0.0, 0.01, 0.05)
    assert not mark.exists()


def test_every_task_that_evaluates_its_answer_is_known():
    evaluating = re.compile(r"\b(eval|exec|parse_expr|sympify)\(\s*(?:user_)?answer")
    found = {
        name: evaluating.findall(inspect.getsource(kind.score_answer))
        for name, (kind, _) in library.factory.DATASETS.items()
    }

    assert {name for name, calls in found.items() if "eval" in calls} == LITERAL
    assert {name for name, calls in found.items() if "parse_expr" in calls} == FORMULA
    assert {name for name, calls in found.items() if calls} == FORMULA | LITERAL


def test_formulas_are_plain_and_calls_are_not():
    for text in ("x**2/2 + sin(x) + C", "(3+4)*2", "A"):
        assert is_formula(text)
    for text in ("print(1)", "x.y", "x if y else z", "lambda: 0", "'a'", "a[0]", wide("exit")):
        assert not is_formula(text)


def test_a_literal_is_given_in_pythons_own_spelling():
    assert literal('[["Q","_"],  ("_",)]') == "[['Q', '_'], ('_',)]"
    for text in (
        "[x]",
        "print()",
        "1 + x",
        "(" * 3000,
        "0x" + "f" * 3900,
        "[" + wide("exit()") + "]",
    ):
        assert literal(text) is None


@pytest.mark.parametrize(("task", "paid"), [("n_queens", 0.5), ("spiral_matrix", 0.1)])
def test_a_right_list_gets_what_its_scorer_pays_for_one(task: str, paid: float):
    rows = [line.split() for line in entry(task)["answer"].splitlines()]
    stated = repr(rows if task == "n_queens" else rows[0])

    assert score(task, stated, score="own") == paid
    assert score(task, stated) == 0.0


def test_every_solution_of_a_task_with_many_is_right():
    index = next(n for n in range(50) if len(entry("n_queens", n)["metadata"]["solutions"]) > 1)

    for solution in entry("n_queens", index)["metadata"]["valid_answers"]:
        found = ReasoningGym(tag=None).grade(solution, "-", item("n_queens", index))
        assert found.score == 1.0


def test_an_item_that_names_no_task_is_refused():
    for wrong, reason in (
        ({}, "expected a name"),
        (item("no_such_task"), "not registered"),
        (item("countdown") | {"config": {"min_numbers": -1}}, "config"),
        (item("countdown") | {"seed": None}, "two integers"),
        (item("composite"), "a single task"),
    ):
        with pytest.raises(Ungradable, match=reason):
            ReasoningGym().check("-", wrong)
