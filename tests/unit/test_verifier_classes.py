"""Equivalence within a group: few comparisons, under a budget, never more agreement than was shown."""

from collections.abc import Iterator

from workers.verifiers import classes
from workers.verifiers.classes import Answer, by_key, classify
from workers.verifiers.math import Math
from workers.verifiers.protocol import Verifier


class Parity(Verifier):
    """Two numbers are the same when both are even or both odd; None above 100."""

    def same(self, left: str, right: str, item: dict[str, object]) -> bool | None:
        if max(int(left), int(right)) > 100:
            return None
        return int(left) % 2 == int(right) % 2


def answers(*texts: str) -> list[Answer]:
    return [Answer(index, text, text) for index, text in enumerate(texts)]


def ticking(step: float) -> Iterator[float]:
    now = 0.0
    while True:
        yield now
        now += step


def test_answers_are_compared_with_representatives_and_numbered_by_first_appearance():
    found = classify(Parity(), answers("3", "4", "5", "8", "3"), {}, seconds=1)

    assert found.of == {0: 0, 1: 1, 2: 0, 3: 1, 4: 0}
    assert found.unresolved == ()


def test_undecided_answers_stay_apart_and_are_flagged():
    found = classify(Parity(), answers("3", "101", "5"), {}, seconds=1)

    assert found.of == {0: 0, 1: 1, 2: 0}
    assert found.unresolved == (1,)


def test_an_answer_that_finds_its_class_after_an_undecided_pair_is_resolved():
    class Mixed(Parity):
        def same(self, left: str, right: str, item: dict[str, object]) -> bool | None:
            return None if left == "3" else left[-1] == right[-1]

    found = classify(Mixed(), answers("3", "17", "27"), {}, seconds=1)

    assert found.of == {0: 0, 1: 1, 2: 1}
    assert found.unresolved == (1,)


def test_beyond_the_budget_of_time_answers_stay_apart_and_are_flagged():
    clock = ticking(1.0)

    found = classify(
        Parity(), answers("1", "3", "5", "7"), {}, seconds=2.5, clock=lambda: next(clock)
    )

    assert found.of[1] == found.of[0]
    assert found.of[3] != found.of[0]
    assert 3 in found.unresolved


def test_the_number_of_comparisons_is_bounded():
    count = 0

    class Counting(Verifier):
        def same(self, left: str, right: str, item: dict[str, object]) -> bool | None:
            nonlocal count
            count += 1
            return False

    found = classify(Counting(), answers(*map(str, range(60))), {}, seconds=9)

    assert count == classes.MAX_COMPARISONS
    assert len(set(found.of.values())) == 60
    assert 59 in found.unresolved


def test_a_verifier_without_an_equivalence_of_its_own_goes_by_key():
    found = classify(Verifier(), answers("a", "b", "a"), {}, seconds=1)

    assert found == by_key(answers("a", "b", "a"), resolved=True)
    assert found.of == {0: 0, 1: 1, 2: 0}


def test_forms_of_one_value_fall_into_one_class_whatever_their_keys():
    texts = [r"\frac{1}{\sqrt2}", "x^2-1", r"\frac{\sqrt2}{2}", "(x-1)(x+1)", "(1,2)", "[1,2]"]

    found = classify(Math(), answers(*texts), {}, seconds=9)

    assert found.of == {0: 0, 1: 1, 2: 0, 3: 1, 4: 2, 5: 3}
