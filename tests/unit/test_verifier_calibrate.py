"""Calibration: what is right must be paid, what is wrong must not, and faults are told."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from broker.messages import Sample
from ops.cli import main
from tests.builders import a_sample
from workers.verifiers.calibrate import calibrate, first_paid
from workers.verifiers.pool import Pool

RAISES = """
from workers.verifiers.protocol import Verifier

class Grader(Verifier):
    def grade(self, response, target, item):
        raise ValueError("unsupported")

    def stated(self, target, item):
        return target
"""
CONFIG = """
[run]
steps = 1
groups_per_step = 1
group_size = 2

[model.tiny]
characters = "0123456789+=abcdefghijkl>"
hidden = 16
layers = 1
heads = 1
kv_heads = 1
intermediate = 16
positions = 32

[sampling]
max_tokens = 8

[[source]]
domain = "sums"
generator = "addition"
eval_items = 5
verifier = {{name = "{verifier}"}}
"""


@pytest_asyncio.fixture
async def pool() -> AsyncIterator[Pool]:
    async with Pool(size=1, deadline_s=5.0, memory_bytes=1 << 30) as started:
        yield started


def samples(verifier: str, targets: str = "1 2 3 1 5") -> list[tuple[Sample, str | None]]:
    spec = {"name": verifier}
    return [
        (a_sample(key=f"d:1:{n}", target=target, verifier=spec), None)
        for n, target in enumerate(targets.split())
    ]


async def test_a_sound_verifier_pays_gold_alone(pool: Pool):
    for verifier in ("math", "exact", "numeric"):
        found = await calibrate(pool, "d", samples(verifier), samples(verifier))

        assert found.problems == []
        assert (found.gold, found.gold_right, found.wrong, found.wrong_paid) == (10, 10, 10, 0)


async def test_another_spelling_of_the_gold_is_no_wrong_answer(pool: Pool):
    found = await calibrate(pool, "d", samples("math", "1/2 0.5 3"), [])

    assert found.problems == []
    assert (found.gold, found.wrong) == (3, 2)


async def test_a_verifier_that_pays_for_wrong_answers_blocks(pool: Pool):
    found = await calibrate(pool, "d", samples("format"), [])

    assert found.problems == ["5 of 5 wrong answers are paid"]
    assert "wrong answer" in found.examples[0]


async def test_solutions_that_the_verifier_cannot_read_block(pool: Pool):
    unreadable = [(sample, "I am not sure what it is.") for sample, _ in samples("math")]

    found = await calibrate(pool, "d", unreadable, [])

    assert found.problems[:2] == [
        "5 of 5 gold answers do not score 1",
        "parse rate 0.00 is below 0.9",
    ]


async def test_a_grader_that_raises_is_counted_and_never_scored(pool: Pool, tmp_path: Path):
    (tmp_path / "mine.py").write_text(RAISES)

    found = await calibrate(pool, "d", samples(f"{tmp_path}/mine.py:Grader"), [])

    assert found.faults == {"verifier_error": 10}
    assert "graders fail: {'verifier_error': 10}" in found.problems
    assert found.wrong_paid == 0


async def test_graders_of_training_and_evaluation_that_differ_are_told(pool: Pool):
    targets = "0.5 1,000 7 8 9"

    found = await calibrate(pool, "d", samples("math", targets), samples("exact", targets))

    # What math states in a box, exact does not accept: they differ on five of 20.
    assert (found.compared, found.agreeing) == (20, 15)
    assert any("agree on 0.75" in problem for problem in found.problems)


async def test_gold_that_is_never_paid_is_told_from_gold_that_is(pool: Pool):
    unpaid = [(sample, "no idea") for sample, _ in samples("math")]

    assert await first_paid(pool, samples("math")) == (True, "")
    assert not (await first_paid(pool, unpaid))[0]


def test_a_run_whose_gold_is_never_paid_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "config.toml").write_text(CONFIG.format(verifier="knights_knaves"))

    assert main(["calibrate", str(tmp_path / "config.toml")]) == 1
    assert "BLOCKED sums (knights_knaves)" in capsys.readouterr().out
    (tmp_path / "config.toml").write_text(CONFIG.format(verifier="exact"))
    assert main(["calibrate", str(tmp_path / "config.toml"), "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["gold"], told["gold_right"], told["problems"]) == (35, 35, [])
    # An addition's answer is its reversed sum: with a verifier that wants a box, nothing would be paid.
    (tmp_path / "config.toml").write_text(CONFIG.format(verifier="choice"))
    assert main(["run", str(tmp_path / "config.toml"), "--dry-run"]) == 2
    assert "source.sums" in capsys.readouterr().err
