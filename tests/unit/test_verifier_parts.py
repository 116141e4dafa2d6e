"""Numeric, format, steps, and what is composed of them."""

import time

import pytest

from broker.errors import BadConfiguration
from workers.verifiers import registry
from workers.verifiers.compose import Compose
from workers.verifiers.format import Format
from workers.verifiers.numeric import Numeric
from workers.verifiers.protocol import Ungradable
from workers.verifiers.steps import Steps


def test_numeric_is_right_within_the_wider_of_its_tolerances():
    assert Numeric(absolute=0.5).grade("The answer is 10.4", "10", {}).score == 1.0
    assert Numeric(absolute=0.5).grade("The answer is 10.6", "10", {}).score == 0.0
    assert Numeric(relative=0.1).grade(r"\boxed{109}", "100", {}).score == 1.0
    assert Numeric(relative=0.1).grade(r"\boxed{-100}", "100", {}).score == 0.0
    assert Numeric(relative=0.0).grade(r"\boxed{0.5}", "1/2", {}).score == 1.0


def test_numeric_reads_units_and_refuses_other_ones():
    assert Numeric().grade(r"\boxed{5 \text{ cm}}", "5 cm", {}).score == 1.0
    assert Numeric().grade(r"\boxed{5 \text{ km}}", "5 cm", {}).score == 0.0


def test_numeric_has_no_use_for_a_target_that_is_no_number():
    with pytest.raises(Ungradable):
        Numeric().check("x", {})
    assert Numeric().grade(r"\boxed{x}", "5", {}).score == 0.0
    assert Numeric().grade("perhaps", "5", {}).score == 0.0


@pytest.mark.parametrize(
    ("response", "strict", "lenient"),
    [
        ("<think>x</think><answer>1</answer>", 1.0, 1.0),
        ("<think>x</think>\n<answer>1</answer>\n", 1.0, 1.0),
        ("<think>x</think>", 0.0, 0.5),
        ("<answer>1</answer><think>x</think>", 0.0, 1.0),
        ("<think></think><answer>1</answer>", 0.0, 1.0),
        ("<think>x<answer>1</answer></think>", 0.0, 1.0),
        ("<think>x</think><answer>1</answer><answer>2</answer>", 0.0, 1.0),
        ("</think>x<think><answer>1</answer>", 0.0, 1.0),
        ("1", 0.0, 0.0),
    ],
)
def test_format_strict_wants_each_tag_once_in_order_and_filled(
    response: str, strict: float, lenient: float
):
    assert Format().grade(response, None, {}).score == strict
    assert Format(mode="lenient").grade(response, None, {}).score == lenient


@pytest.mark.parametrize(
    ("response", "score"),
    [
        ("2+3=5; 5*4=21", 0.5),
        ("We have 2 + 3 = 5 apples. Then 5 × 4 = 20.", 1.0),
        ("16 - 3 - 4 = <<16-3-4=9>>9", 1.0),
        ("$9 * 2 = $18", 1.0),
        ("2.5 * 2 = 5.", 1.0),
        ("3*2 = 6 = 7", 0.0),
        ("1/0 = 3", 0.0),
        ("2x = 4 and x = 2; 1+1=2", 1.0),
    ],
)
def test_steps_is_the_share_of_equations_that_hold(response: str, score: float):
    assert Steps().grade(response, None, {}).score == score


def test_steps_without_an_equation_are_no_answer():
    assert Steps().grade("x = 5, I think", None, {}).status == "no_answer"


def test_padding_with_true_equations_beyond_the_cap_does_not_pay():
    response = "1+1=3; " * 2 + "1+1=2; " * 100

    assert Steps(max_steps=4).grade(response, None, {}).score == 0.5


@pytest.mark.parametrize(
    "noise", ["1 " * 10_000, "=1" * 10_000, "9^" * 10_000 + "=1", "(" * 20_000]
)
def test_noise_in_steps_is_read_in_bounded_time(noise: str):
    started = time.process_time()

    Steps().grade(noise, None, {})

    assert time.process_time() - started < 3.0


def composed(**changes: object) -> Compose:
    parts = [{"verifier": "math", "weight": 0.8}, {"verifier": "format", "weight": 0.2}]
    return Compose.model_validate({"parts": parts} | changes)


RIGHT_AND_FORMED = r"<think>x</think><answer>\boxed{7}</answer>"


def test_a_weighted_sum_states_its_components():
    half = {"verifier": {"name": "format", "mode": "lenient"}, "weight": 0.2}
    verifier = composed(parts=[{"verifier": "math", "weight": 0.8}, half])

    finding = verifier.grade(r"<answer>\boxed{7}</answer>", "7", {})

    assert finding.score == pytest.approx(0.9)
    assert finding.components == {"math": 1.0, "format": 0.5}
    assert (finding.extracted, finding.answer_key) == ("7", "7")


def test_shares_of_an_answer_that_is_right_in_all_parts_make_exactly_1():
    lenient = {"name": "format", "mode": "lenient"}
    weights = {"math": 0.7, "format": 0.2}
    parts = [{"verifier": name, "weight": weight} for name, weight in weights.items()]
    verifier = composed(parts=[*parts, {"verifier": lenient, "weight": 0.1}])

    assert 0.7 + 0.2 + 0.1 < 1.0
    assert verifier.grade(RIGHT_AND_FORMED, "7", {}).score == 1.0


def test_a_gate_multiplies():
    half = {"verifier": {"name": "format", "mode": "lenient"}, "gate": True}
    verifier = composed(parts=[{"verifier": "math"}, half])

    assert verifier.grade(r"<answer>\boxed{7}</answer>", "7", {}).score == 0.5
    assert verifier.grade(RIGHT_AND_FORMED, "7", {}).score == 1.0
    assert verifier.grade(RIGHT_AND_FORMED, "8", {}).score == 0.0


def test_without_weights_all_parts_count_the_same():
    verifier = composed(parts=[{"verifier": "math"}, {"verifier": "format"}])

    assert verifier.grade(r"\boxed{7}", "7", {}).score == 0.5


def test_a_part_that_cannot_grade_makes_the_whole_ungradable():
    finding = composed().grade(RIGHT_AND_FORMED, None, {})

    assert (finding.status, finding.score) == ("ungradable", None)
    assert finding.answer_key == "7"
    with pytest.raises(Ungradable):
        composed().check("see figure", {})


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([], "at least 1"),
        ([{"verifier": "nonsense"}], "nonsense"),
        ([{"verifier": {"name": "math", "fallbacks": []}}], "fallbacks"),
        ([{"verifier": "math", "weight": 0.5}, {"verifier": "format", "weight": 0.6}], "sum 1"),
        ([{"verifier": "math", "weight": 1.0}, {"verifier": "format"}], "sum 1"),
        ([{"verifier": "math", "weight": -1.0}], "greater than or equal"),
        ([{"verifier": "math", "weight": float("nan")}], "finite"),
        ([{"verifier": "format", "gate": True}], "no gate"),
    ],
)
def test_a_composition_that_makes_no_sense_is_refused(parts: list[object], reason: str):
    with pytest.raises(BadConfiguration, match=reason):
        registry.build({"name": "compose", "parts": parts})


def test_a_composition_knows_the_equivalence_of_its_parts():
    assert composed().same(r"\frac{1}{\sqrt2}", r"\frac{\sqrt2}{2}", {}) is True
    assert composed().same("1", "2", {}) is False
