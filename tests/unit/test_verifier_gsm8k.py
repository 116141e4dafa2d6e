"""Every gold answer of GSM8K passes against itself and fails against its value plus one."""

import pytest

from tests.verifier_data import rows
from workers.verifiers.math import Math


@pytest.mark.parametrize(("name", "count"), [("train", 7_473), ("test", 1_319)])
def test_gold_passes_against_itself_and_fails_against_its_value_plus_one(name: str, count: int):
    verifier = Math()
    golds = [
        str(row["answer"]).rpartition("####")[2].strip() for row in rows(f"gsm8k/{name}.jsonl")
    ]

    failed, passed = [], []
    for row, gold in zip(rows(f"gsm8k/{name}.jsonl"), golds, strict=True):
        whole, _, decimals = gold.replace(",", "").partition(".")
        more = f"{int(whole) + 1}" + (f".{decimals}" if decimals else "")
        own = [f"It is \\boxed{{{gold}}}.", f"The final answer is {gold}.", str(row["answer"])]
        if not all(verifier.grade(text, gold, {}).score == 1.0 for text in own):
            failed.append(gold)
        if verifier.grade(f"It is \\boxed{{{more}}}.", gold, {}).score != 0.0:
            passed.append(gold)

    assert len(golds) == count
    assert failed == []
    assert passed == []
