"""What holds for every answer: spelling and argument order change no verdict, a near miss is a miss."""

from fractions import Fraction

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from workers.verifiers.math import Math

relaxed = settings(max_examples=60, deadline=None)
FRACTIONS = st.fractions(min_value=-1000, max_value=1000, max_denominator=200)
ATOMS = st.sampled_from(
    ["x", "y", "2", "7", r"\pi", r"\sqrt{3}", r"\frac{1}{2}", "a_1", r"\alpha "]
)


def expressions() -> st.SearchStrategy[str]:
    return st.recursive(
        ATOMS,
        lambda inner: st.one_of(
            st.tuples(inner, inner).map(lambda p: f"({p[0]}+{p[1]})"),
            st.tuples(inner, inner).map(lambda p: f"{p[0]} \\cdot {p[1]}"),
            st.tuples(inner, inner).map(lambda p: f"\\frac{{{p[0]}}}{{{p[1]}}}"),
            inner.map(lambda e: f"\\sqrt{{{e}}}"),
            inner.map(lambda e: f"({e})^2"),
        ),
        max_leaves=5,
    )


ANSWERS = st.one_of(
    expressions(),
    FRACTIONS.map(str),
    st.tuples(expressions(), expressions()).map(lambda p: f"({p[0]}, {p[1]})"),
    st.tuples(expressions(), expressions()).map(lambda p: f"{p[0]}, {p[1]}"),
    st.tuples(FRACTIONS, FRACTIONS).map(lambda p: f"[{p[0]}, {p[1]})"),
    st.tuples(expressions(), expressions()).map(lambda p: f"\\{{{p[0]}, {p[1]}\\}}"),
    FRACTIONS.map(lambda f: f"x < {f}"),
)


def same(gold: str, answer: str) -> bool:
    return Math().grade(f"\\boxed{{{answer}}}", gold, {}).score == 1.0


def spelled(value: Fraction) -> list[str]:
    """Ways to write a rational number."""
    n, d = value.numerator, value.denominator
    ways = [
        f"{n}/{d}",
        f"\\frac{{{n}}}{{{d}}}",
        f"\\dfrac{{{3 * n}}}{{{3 * d}}}",
        f"({n}) \\div {d}",
    ]
    if d == 1:
        ways += [str(n), f"{n}.0", f"{n:,}"]
    if 10**6 % d == 0:
        ways += [f"{n * 10**6 // d}e-6", f"{float(100 * value):.10f}\\%"]
    return ways


@relaxed
@given(FRACTIONS)
def test_every_spelling_of_a_rational_number_is_the_same_answer(value: Fraction):
    ways = spelled(value)

    assert all(same(one, other) for one in ways for other in ways)


@relaxed
@given(FRACTIONS, FRACTIONS)
def test_two_rational_numbers_are_the_same_answer_only_if_they_are_equal(a: Fraction, b: Fraction):
    assert same(spelled(a)[0], spelled(b)[1]) == (a == b)


@relaxed
@given(st.integers(min_value=1, max_value=10**9), st.integers(min_value=1, max_value=60))
def test_a_number_off_by_the_tiniest_share_is_another_number(whole: int, places: int):
    assert not same(str(whole), f"{whole}.{'0' * places}1")


@relaxed
@given(ANSWERS, ANSWERS)
def test_which_one_is_the_gold_makes_no_difference(one: str, other: str):
    assert same(one, other) == same(other, one)


@relaxed
@given(ANSWERS)
def test_an_answer_equals_itself_and_spacing_and_delimiters_do_not_count(answer: str):
    assume("/0" not in answer)

    assert same(answer, answer)
    assert same(answer, f"  ${answer.replace('+', ' + ').replace('(', '( ')}$ . ")
    assert same(answer, answer.replace("frac", "dfrac").replace(r"\cdot", r"\times"))


@relaxed
@given(expressions())
def test_an_expression_plus_one_is_another_expression(expression: str):
    assert not same(expression, f"{expression} + 1")
    assert same(expression, f"{expression} + 1 - 1")


@relaxed
@given(ANSWERS, ANSWERS)
def test_answers_with_equal_keys_are_the_same_answer(one: str, other: str):
    keys = [Math().grade(f"\\boxed{{{text}}}", None, {}).answer_key for text in (one, other)]

    assert keys[0] != keys[1] or same(one, other)


@relaxed
@given(st.text(max_size=300))
def test_no_text_whatever_breaks_the_verifier(response: str):
    assert Math().grade(response, "7", {}).score in (0.0, 1.0)


@relaxed
@given(st.text(alphabet=r"\{}()[]^_,.=<>+-*/!|x7 \frac\sqrt\pi\pm\cup", max_size=60))
def test_no_mathematical_noise_breaks_the_verifier(noise: str):
    for gold in ("7", r"\sqrt{2}", "x + 1"):
        assert Math().grade(f"\\boxed{{{noise}}}", gold, {}).score in (0.0, 1.0)
