"""The math verifier is right where others have been wrong."""

import subprocess
import sys
import time

import pytest

from tests.verifier_data import rows
from workers.verifiers.math import Math
from workers.verifiers.protocol import Ungradable

RIGHT = [
    # numbers
    ("1/2", r"\boxed{.5}"),
    (r"50\%", r"\boxed{1/2}"),
    (r"50\%", r"\boxed{0.5}"),
    (r"\frac12", r"\boxed{1/2}"),
    ("1024", r"\boxed{2^{10}}"),
    ("½", r"\boxed{0.5}"),
    ("2½", r"\boxed{\frac{5}{2}}"),
    ("25", r"\boxed{5²}"),
    ("3.0", r"\boxed{3}"),
    ("1,000", r"\boxed{1000}"),
    ("1000000", r"\boxed{1{,}000{,}000}"),
    ("1,000,000", r"\boxed{10^6}"),
    ("5/4", "The answer is 1 1/4"),
    ("-5/2", r"\boxed{-2\frac{1}{2}}"),
    ("1.2e6", r"\boxed{1200000}"),
    ("033", r"\boxed{33}"),
    ("11111111100", r"\boxed{11,\! 111,\! 111,\! 100}"),
    ("52_8", r"\boxed{52_{8}}"),
    ("52_8", r"\boxed{52_{\text{eight}}}"),
    ("-4", r"\boxed{-2^2}"),
    ("0.1 + 0.2", r"\boxed{0.3}"),
    (r"\frac{1}{3}", r"\boxed{0.333333333333333}"),
    (r"\frac{1}{12}", r"\boxed{0.0833333333333333}"),
    (r"\binom{10}{3}", r"\boxed{5!}"),
    ("2^{1000}", r"\boxed{2^{1000}}"),
    ("9^{9^{9^9}}", r"\boxed{9^{9^{9^9}}}"),
    ("7", r"\boxed{" + "(" * 30 + "7" + ")" * 30 + "}"),
    # roots, functions, symbols
    (r"\frac{\sqrt{2}}{2}", r"\boxed{\frac{1}{\sqrt 2}}"),
    (r"2\sqrt{3}", r"\boxed{\sqrt{12}}"),
    (r"10\sqrt{2}", r"\boxed{14.1421356237310}"),
    ("0", r"\boxed{\sqrt 2 \sqrt 2 - 2}"),
    (r"\sqrt[3]{-8}", r"\boxed{-2}"),
    (r"\log_2 8", r"\boxed{3}"),
    (r"\dfrac{\pi}{2}", "pi/2"),
    ("e^{16} - 1", "-1 + exp(16)"),
    ("14 - i", r"\boxed{14.0 + -1.0i}"),
    ("i", r"\boxed{\sqrt{-1}}"),
    ("3", r"\boxed{\lfloor \pi \rfloor}"),
    ("x^2-1", r"\boxed{(x-1)(x+1)}"),
    (r"\sin^2 x", r"\boxed{1 - \cos^2 x}"),
    (r"2\sin x\cos x", r"\boxed{\sin 2x}"),
    ("|x|", r"\boxed{\sqrt{x^2}}"),
    (r"\frac{a+b}{2}", r"\boxed{(a+b)/2}"),
    # where the answer stands
    ("73", "so it is **73**.\n\n---\n\nFinal Answer: **73**"),
    ("73", "**Final Answer**\n\n73"),
    ("7", r"<think>hm, \boxed{8}</think> \boxed{7}"),
    ("7", r"hm, \boxed{8}</think> \boxed{7}"),
    ("42", r"\fbox{42}"),
    ("7", r"\boxed 7"),
    ("9", r"first \boxed{7}, but no: \boxed{9}"),
    ("70000", "#### 70,000"),
    ("18", "#### $18"),
    ("25.5", "#### 25.50"),
    ("18", "The answer is \\$18."),
    ("42", "The answer is 42 because 6 * 7 is."),
    # several answers
    ("1331 and 1728", r"\boxed{1728} and \boxed{1331}"),
    (r"\{1,2\}", r"\boxed{\{2,1\}}"),
    (r"\{1,2\}", r"\boxed{2, 1}"),
    (r"\pm 2021", r"\boxed{-2021, 2021}"),
    (r"3 \pm \sqrt{2}", r"\boxed{3-\sqrt2, 3+\sqrt2}"),
    (r"(3, \frac{\pi}{2})", r"\boxed{\left(3,\frac{\pi}{2}\right)}"),
    ("x=1,2", r"\boxed{1, 2}"),
    # relations and sets
    ("x=5", r"\boxed{5}"),
    ("5", r"\boxed{x = 5}"),
    ("7", r"\boxed{3+4=7}"),
    ("y=2x+1", r"\boxed{2x-y+1=0}"),
    ("3x+4y+14=0", r"\boxed{6x+8y=-28}"),
    ("x<3", r"\boxed{(-\infty, 3)}"),
    (r"(-\infty, 3)", r"\boxed{x<3}"),
    ("x<3", r"\boxed{3 > x}"),
    ("[1,2)", r"\boxed{1 \le x < 2}"),
    (r"(0,9) \cup (9,36)", r"\boxed{(9,36)\cup(0,9)}"),
    (r"(2,\infty)", r"\boxed{(2, \infty)}"),
    # units and words
    ("5 cm", r"\boxed{5 \text{ centimeters}}"),
    (r"5\text{ cm}^2", r"\boxed{5 \text{ square centimeters}}"),
    ("42", r"\boxed{42 \text{ apples}}"),
    ("7000000", r"\boxed{7 \text{ million}}"),
    (r"36^\circ", r"\boxed{36}"),
    (r"\text{Yes}", r"\boxed{yes}"),
    ("A", r"\boxed{\textbf{(A)}}"),
]

WRONG = [
    (r"\frac{1}{2^{99}}", r"\boxed{\frac{1}{2^{98}}}"),
    (r"\frac{1}{2004!}", r"\boxed{\frac{1}{2006!}}"),
    (r"\frac{\pi}{2^{99}}", r"\boxed{\frac{\pi}{2^{98}}}"),
    (r"\frac{1}{2^{99}}", r"\boxed{0}"),
    ("7", r"\boxed{100 = 7}"),
    ("7", r"\boxed{x = 7 = 8}"),
    ("7", r"\boxed{1, 2, \ldots, 7}"),
    (r"50\%", r"\boxed{50}"),
    ("50", r"\boxed{50\%}"),
    ("½", r"\boxed{.49}"),
    (r"5\text{ cm}", r"\boxed{5\text{ km}}"),
    (r"2\text{ hours}", r"\boxed{2\text{ minutes}}"),
    (r"5\text{ cm}^2", r"\boxed{5 \text{ cm}}"),
    ("7", r"\boxed{7 \text{ million}}"),
    ("2", "The answer is 2 2/3"),
    ("10", "The answer is 4 10/3"),
    ("3:30", r"\boxed{1:10}"),
    ("52_8", r"\boxed{52}"),
    ("52_8", r"\boxed{52_{9}}"),
    ("52", r"\boxed{5²}"),
    (r"(0,9) \cup (9,36)", r"\boxed{(0,36)}"),
    ("[1,2)", r"\boxed{1 < x < 2}"),
    ("(1,2)", r"\boxed{[1,2]}"),
    ("(1,2)", r"\boxed{(2,1)}"),
    ("1331 and 1728", r"\boxed{1728}"),
    (r"\pm 2021", r"\boxed{2021}"),
    ("7", r"\boxed{7} or \boxed{8} or \boxed{9}"),
    ("9", r"\boxed{7} or \boxed{9}"),
    ("7", "The answer is 7 or 8"),
    ("7", r"<think>maybe \boxed{7}</think> I give up."),
    ("7", r"<think>it must be \boxed{7}"),
    (r"\frac{1}{2}", r"\boxed{\frac{1}{2}"),
    (r"\frac{1}{2}", r"\boxed{\frac{1}{2}} so \boxed{\frac{1}"),
    ("7", "So 7"),
    ("7", "I do not know."),
    ("x=5", r"\boxed{y=5}"),
    ("x", r"\boxed{\sqrt{x^2}}"),
    ("4", r"\boxed{(-2)^2 + x - x + 1}"),
    (r"10\sqrt{2}", r"\boxed{14.142}"),
    (r"2\pi", r"\boxed{2\pi r}"),
    (r"\infty", r"\boxed{-\infty}"),
    (r"\infty", r"\boxed{\frac{1}{0}}"),
]


def score(gold: str, response: str, **options: object) -> float | None:
    return Math.model_validate(options).grade(response, gold, {}).score


@pytest.mark.parametrize(("gold", "response"), RIGHT)
def test_an_equivalent_answer_scores_one(gold: str, response: str):
    assert score(gold, response) == 1.0


@pytest.mark.parametrize(("gold", "response"), WRONG)
def test_a_different_answer_scores_zero(gold: str, response: str):
    assert score(gold, response) == 0.0


def test_every_labelled_row_of_the_shared_pairs_comes_out_right():
    pairs = [row for row in rows("verifier_pairs/math.jsonl") if row["right"] is not None]

    wrong = [
        row["id"] for row in pairs if score(str(row["gold"]), str(row["response"])) != row["right"]
    ]

    assert len(pairs) > 60
    assert wrong == []


POLICY = {
    "mv2c": 0, "mv10": 1, "mv71": 1, "unit1": 1, "unclosed": 0, "fbox": 1, "zoo": 0, "unit_conv": 0,
    "eqside": 1, "approxsym": 0, "setvs": 0, "tuplevslist": 0, "emptyset2": 0, "choiceB3": 0, "deg2": 0,
    "ratio": 0, "fullwidth": 1, "tol": 0,
}  # fmt: skip
"""What compare.py's policy table makes of the rows whose verdict is a matter of policy."""


def test_rows_that_are_a_matter_of_policy_follow_the_documented_one():
    pairs = [row for row in rows("verifier_pairs/math.jsonl") if row["right"] is None]

    found = {str(row["id"]): score(str(row["gold"]), str(row["response"])) for row in pairs}

    assert found == POLICY


@pytest.mark.parametrize(
    "gold", ["", "  ", "see figure", "The proof is given above", "1, 2, \\ldots, n", "1/0"]
)
def test_a_target_that_cannot_be_compared_is_ungradable(gold: str):
    with pytest.raises(Ungradable):
        Math().check(gold, {})
    with pytest.raises(Ungradable):
        Math().grade(r"\boxed{1}", gold, {})


def test_an_unlabelled_answer_is_still_read():
    finding = Math().grade(r"\boxed{.5}", None, {})

    assert (finding.status, finding.score) == ("ungradable", None)
    assert (finding.extracted, finding.answer_key) == (".5", "1/2")


@pytest.mark.parametrize(
    ("one", "other"),
    [("0.5", r"\frac{2}{4}"), (r"50\%", "1/2"), (r"\frac{\sqrt2}{2}", r"\frac{1}{\sqrt2}"), ("1+x", "x + 1"),
     ("x=7", "7"), ("1, 2", "2,1"), ("1,000", "1000"), (r"\text{Even}", "even")],
)  # fmt: skip
def test_equal_answers_have_equal_keys(one: str, other: str):
    keys = {Math().grade(f"\\boxed{{{text}}}", None, {}).answer_key for text in (one, other)}

    assert len(keys) == 1


@pytest.mark.parametrize(
    "gold", ["1/2", r"\sqrt{2}", "(1, 2]", r"\{1, 2\}", "5 cm", "x + 1", "x < 3", "52_8"]
)
def test_a_key_can_be_read_as_the_answer_it_stands_for(gold: str):
    key = Math().grade(f"\\boxed{{{gold}}}", None, {}).answer_key

    assert score(gold, f"\\boxed{{{key}}}") == 1.0


def test_without_fallbacks_only_a_box_is_an_answer():
    assert score("7", "The answer is 7", fallback=[]) == 0.0
    assert score("7", r"\boxed{7}", fallback=[]) == 1.0


def test_a_bare_percentage_counts_only_where_the_prompt_asks_for_one():
    assert score(r"50\%", r"\boxed{50}", bare_percent=True) == 1.0
    assert score("0.5", r"\boxed{50}", bare_percent=True) == 1.0
    assert score("0.5", r"\boxed{5}", bare_percent=True) == 0.0


def test_thoughts_can_be_graded_where_the_task_says_so():
    assert score("7", r"<think>\boxed{7}</think>", think=False) == 1.0


HOSTILE = [
    "9^{9^{9^{9}}}", "(10^{10})!", "100000000!", "123456789^{987654321}", r"\binom{10^{9}}{5 \cdot 10^{8}}",
    r"\sum_{k=1}^{10^{12}} \frac{1}{k}", r"\prod_{k=1}^{10^{9}} k", "(" * 3000 + "7" + ")" * 3000,
    "(" * 900 + "7" + ")" * 900, "9" * 1_000_000, "{" * 9_000 + "}" * 9_000, r"\sqrt" * 400 + "7",
    r"\frac{1}{" * 200 + "2" + "}" * 200, "2^{" * 300 + "2" + "}" * 300, "-" * 1_999 + "7",
    "((7)!)!" + "!" * 500,
    "x" + "^2" * 500, "1e999999999", "0." + "0" * 900 + "1", r"\sin(10^{10^{10}})", r"\exp(\exp(\exp(100)))",
    "1" + "+1" * 900, "x y " * 490, r"\pm " * 400 + "1", "1," * 900 + "1", r"\sqrt[10^{9}]{2^{10^{8}}}",
    r"\log_{2^5}(\log_{2^4}(\log_{2^3}(\log_{2^2}(\log_{2^1}x))))", "7" + "\\ " * 900 + "x", "=" * 1_000,
]  # fmt: skip


@pytest.mark.parametrize("gold", ["7", r"\sqrt{2}", "x^2", "1, 2", "(1,2)"])
@pytest.mark.parametrize("answer", HOSTILE, ids=lambda text: text[:20])
def test_a_hostile_answer_scores_zero_in_bounded_time(gold: str, answer: str):
    started = time.process_time()

    finding = Math().grade(f"\\boxed{{{answer}}}", gold, {})

    assert finding.score == 0.0
    assert time.process_time() - started < 2.0


@pytest.mark.parametrize(
    "response",
    [r"\boxed{" * 100_000, r"\boxed{} " * 50_000, " " * 1_000_000, "answer is " * 100_000,
     "answer" + ":" * 500_000, "\n" * 1_000_000 + "final answer", "####" * 250_000,
     r"\boxed{1}" + " " * 900_000 + r"\boxed{7}",
     "the answer is " + " " * 900_000 + "because", "<think>" * 100_000, r"\boxed{7" + "\\" * 1_000_000],
    ids=range(11),
)  # fmt: skip
def test_a_response_of_a_megabyte_is_searched_in_bounded_time(response: str):
    started = time.process_time()

    Math().grade(response, "8", {})

    assert time.process_time() - started < 2.0


def test_importing_the_worker_and_the_verifier_loads_no_symbolic_library():
    code = (
        "import sys; import workers.verifiers.worker, workers.verifiers.math;"
        "print([m for m in ('sympy', 'math_verify', 'torch') if m in sys.modules])"
    )

    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert loaded.stdout.strip() == "[]"
