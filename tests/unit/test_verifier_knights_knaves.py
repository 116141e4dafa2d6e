"""Knights and Knaves: everybody's role, nobody else's, after the last marker."""

import json
import time

import pytest

from workers.verifiers.knights_knaves import KnightsKnaves
from workers.verifiers.protocol import Ungradable

GOLD = json.dumps({"A": "knight", "B": "knave"})

CASES = [
    ("A is a knight and B is a knave", 1.0),
    ("A: knight", 0.0),
    ("B is not a knight, A is a knight", 1.0),
    ("<answer>A is the knight, **B** is a **knave**</answer>", 1.0),
    (r"\boxed{A = \text{knight}, B = \text{knave}}", 1.0),
    ("If A is a knave, B lies. Final answer: A is a knight, B is a knave.", 1.0),
    ("Answer: (1) A is a knight\n(2) B is a knave", 1.0),
    ("Answer:\n- A: Knight\n- B: Knave", 1.0),
    ("A is a knight, B is a knave, C is a knave", 0.0),
    ("A is a knight, A is a knave, B is a knave", 0.0),
    ("A and B are knights", 0.0),
    ("A is a knave and B is a knight", 0.0),
    ("Answer: A is a knight, B is a knave. Or answer: A is a knave, B is a knave", 0.0),
    ("<think>A is a knight, B is a knave</think> I cannot say.", 0.0),
    ("I cannot say.", 0.0),
    ("", 0.0),
]


@pytest.mark.parametrize(("response", "score"), CASES)
def test_an_answer_is_right_when_it_is_the_whole_solution(response: str, score: float):
    assert KnightsKnaves().grade(response, GOLD, {}).score == score


def test_the_item_may_name_the_roles_otherwise():
    item: dict[str, object] = {"roles": ["hero", "villain"]}

    assert KnightsKnaves().grade("A is a hero, B is not a hero", GOLD, item).score == 1.0
    gold = json.dumps({"A": "hero", "B": "villain"})
    assert KnightsKnaves().grade("A is a hero. B is a villain.", gold, item).score == 1.0


def test_the_key_does_not_depend_on_the_order_of_names():
    keys = {
        KnightsKnaves().grade(text, None, {}).answer_key
        for text in ("A is a knight, B is a knave", "B: knave, A: knight")
    }

    assert keys == {"a: knight, b: knave"}


@pytest.mark.parametrize("target", ["", "A: knight", "[]", "{}", '{"A": "spy"}'])
def test_a_target_that_is_no_solution_is_ungradable(target: str):
    with pytest.raises(Ungradable):
        KnightsKnaves().check(target, {})


@pytest.mark.parametrize("noise", ["aand" * 500, "a, " * 2000, "A and " * 2000, "is a " * 2000])
def test_noise_is_read_in_bounded_time(noise: str):
    started = time.process_time()

    KnightsKnaves().grade(f"Answer: {noise}", GOLD, {})

    assert time.process_time() - started < 2.0


@pytest.mark.parametrize("target", ['["knight", "knave"]', "[true, false]"])
def test_a_solution_may_be_a_list_beside_the_items_names(target: str):
    item = {"names": ["Ann", "Bob"]}

    assert KnightsKnaves().grade("Ann is a knight, Bob is a knave", target, item).score == 1.0
    assert KnightsKnaves().grade("Bob is a knight, Ann is a knave", target, item).score == 0.0
    with pytest.raises(Ungradable, match="names None: expected a list of 2"):
        KnightsKnaves().check(target, {})
    for names in (["Ann", "ann"], ["Ann", 1], [["Ann"], "Bob"]):
        with pytest.raises(Ungradable, match="expected texts that differ"):
            KnightsKnaves().check(target, {"names": names})
