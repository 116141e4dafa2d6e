"""BLEU: as sacrebleu computes it, between 0 and 1."""

import pytest
import sacrebleu

from workers.verifiers.bleu import Bleu
from workers.verifiers.protocol import Ungradable

TARGET = "The cat sat on the mat."


@pytest.mark.parametrize(
    "answer",
    ["The cat sat on a mat.", "A cat sat on the mat .", "the cat", "On the mat sat a dog."],
)
def test_a_score_is_that_of_sacrebleu(answer: str):
    expected = sacrebleu.sentence_bleu(answer, [TARGET]).score / 100

    assert Bleu().grade(answer, TARGET, {}).score == pytest.approx(expected)


def test_the_best_of_several_references_counts_and_nothing_in_common_is_0():
    item = {"references": ["A feline rested on the rug."]}

    assert Bleu().grade("A feline rested on the rug.", TARGET, item).score == pytest.approx(1.0)
    assert Bleu().grade("Dogs bark loudly", TARGET, {}).score == 0.0
    assert Bleu().grade(TARGET.lower(), TARGET, {}).score < 1.0
    assert Bleu(lowercase=True).grade(TARGET.lower(), TARGET, {}).score == pytest.approx(1.0)


def test_an_answer_may_stand_in_a_tag():
    verifier = Bleu(tag="translation")

    assert verifier.grade(f"Well: <translation>{TARGET}</translation>", TARGET, {}).score == 1.0
    assert verifier.grade(TARGET, TARGET, {}).status == "no_answer"
    assert Bleu().grade("", TARGET, {}).status == "no_answer"


def test_a_flood_costs_nothing_and_wrong_references_are_refused():
    assert Bleu().grade("cat " * 10_000, TARGET, {}).score == 0.0
    with pytest.raises(Ungradable, match="list of texts"):
        Bleu().check(TARGET, {"references": "one"})
    with pytest.raises(Ungradable, match="not empty"):
        Bleu().check(" ", {})
