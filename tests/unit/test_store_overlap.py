"""Overlap audit: every kind of overlap is found, none is invented, and it is quick enough to be run."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.cli import main
from store.datasets.overlap import Index, Overlap, Text, audit, judge, measure, normalised
from tests.verifier_data import rows

WORDS = [f"w{n}" for n in range(40)]
LIMIT_S = 60.0


def text(words: list[str] | str, row: int = 1) -> Text:
    return Text.of(row, words if isinstance(words, str) else " ".join(words))


def test_the_worked_examples_come_out():
    first, second = WORDS[:14], [*WORDS[:13], "other"]

    assert measure(text(first), text(second))[0] == pytest.approx(1 / 3)
    assert measure(text(first), text(first))[0] == 1.0
    assert judge(text(first), text(second)) is None


@pytest.mark.parametrize(
    ("train", "evaluation", "kind"),
    [
        ("How many apples?", "How many apples?", "exact"),
        ("How many  apples?!", "how many APPLES", "normalised"),
        ("Ｈow much is ½?", "how much is 1⁄2", "normalised"),
        (" ".join(WORDS[:30]), " ".join([*WORDS[:28], "x", "y"]), "jaccard"),
        # A short item inside a long one, and the other way round: Jaccard misses both.
        (" ".join(WORDS), " ".join(WORDS[3:17]), "contained"),
        (" ".join(WORDS), " ".join(WORDS[3:8]), "contained"),
        (" ".join(WORDS[3:8]), " ".join(WORDS), "contained"),
        (" ".join(WORDS[:8]), " ".join([*WORDS[:8], "x"]), "jaccard"),
        ("How much is 2 + 3?", "How much is 2 - 3?", None),
        ("How much is 2 + 3?", "How much is 2 + 4?", None),
        ("two words", "two words and more", None),
        ("", "", "exact"),
    ],
)
def test_each_kind_of_overlap_is_told_apart(train: str, evaluation: str, kind: str | None):
    found = judge(text(train), text(evaluation))

    assert (found and found.kind) == kind
    if train:
        assert kinds(audit([text(train)], Index([text(evaluation)]))) == ([kind] if kind else [])


def kinds(found: "list[Overlap] | object") -> list[str]:
    return [overlap.kind for overlap in found]  # type: ignore[attr-defined]


texts = st.lists(st.lists(st.sampled_from("abcd"), min_size=1, max_size=20), min_size=1, max_size=6)


@given(train=texts, evaluation=texts)
def test_the_index_loses_no_pair(train: list[list[str]], evaluation: list[list[str]]):
    ours = [text(words, row) for row, words in enumerate(train)]
    theirs = [text(words, row) for row, words in enumerate(evaluation)]

    found = {(o.train.row, o.evaluation.row, o.kind) for o in audit(ours, Index(theirs))}

    judged = (judge(a, b) for a in ours for b in theirs)
    assert found == {(o.train.row, o.evaluation.row, o.kind) for o in judged if o is not None}


def test_normalising_keeps_digits_and_operators():
    assert normalised("It’s  3.5×2 = 1,000%, no…") == "its 3 5 2 = 1000% no"


def test_the_command_lists_the_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    train, held_out = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
    train.write_text('{"question": "Who is it?"}\n{"question": "What is two and two?"}\n')
    held_out.write_text('{"question": "what is two and two"}\n')
    asked = ["data", "audit", str(train), str(held_out), "--prompt", "question"]

    assert main(asked) == 1
    assert "normalised 1" in capsys.readouterr().out
    assert main([*asked, "--json"]) == 1
    pair = json.loads(capsys.readouterr().out)[0]["pairs"][0]
    assert (pair["train_row"], pair["evaluation_row"], pair["kind"]) == (2, 1, "normalised")
    assert main(["data", "audit", str(train), str(train), "--prompt", "prompt"]) == 2
    assert "train.jsonl:1: prompt is None" in capsys.readouterr().err


def test_only_what_the_user_asks_is_compared(tmp_path: Path):
    brief = {"role": "system", "content": "You are a careful helper. " + "Think step by step. " * 9}
    train, held_out = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
    for path, question in ((train, "What is two and two?"), (held_out, "Who wrote Faust?")):
        turns = [brief, {"role": "user", "content": question}]
        path.write_text(json.dumps({"prompt": turns}) + "\n")

    assert main(["data", "audit", str(train), str(held_out)]) == 0
    assert main(["data", "audit", str(train), str(train)]) == 1


def test_gsm8k_is_audited_in_time():
    train = [Text.of(n, str(row["question"])) for n, row in enumerate(rows("gsm8k/train.jsonl"), 1)]
    held_out = [
        Text.of(n, str(row["question"])) for n, row in enumerate(rows("gsm8k/test.jsonl"), 1)
    ]
    planted = Text.of(len(train) + 1, held_out[7].raw.upper())
    started = time.process_time()

    found = list(audit([*train, planted], Index(held_out)))

    assert time.process_time() - started < LIMIT_S
    assert ("normalised", planted.row, 8) in {
        (o.kind, o.train.row, o.evaluation.row) for o in found
    }
