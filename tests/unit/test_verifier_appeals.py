"""Appeals: what a second verifier says of a rule's wrong answers."""

import pytest

from broker.errors import BadConfiguration
from workers.verifiers import registry
from workers.verifiers.appeals import Appeals
from workers.verifiers.protocol import Ungradable

RULE = {"rule": "exact", "second": "numeric"}


def test_an_appeal_tells_what_the_rule_missed_and_leaves_its_score():
    verifier = Appeals.model_validate({**RULE, "share": 1.0})

    missed, wrong, right = (verifier.grade(text, "10", {}) for text in ("10.0", "11", "10"))

    assert (missed.score, missed.components) == (0.0, {"appeal": 1.0})
    assert (wrong.score, wrong.components) == (0.0, {"appeal": 0.0})
    assert (right.score, right.components) == (1.0, {})


def test_the_stated_share_of_wrong_answers_is_heard_the_same_ones_every_time():
    verifier = Appeals.model_validate({**RULE, "share": 0.25})

    heard = [[bool(verifier.grade(f"{n}", "-1", {}).components) for n in range(2000)] for _ in "ab"]

    assert heard[0] == heard[1]
    assert sum(heard[0]) == pytest.approx(500, abs=60)


def test_both_verifiers_of_an_appeal_must_be_known_and_able_to_judge():
    with pytest.raises(BadConfiguration, match="expected one of"):
        registry.build({"name": "appeals", "rule": "exact", "second": "oracle", "share": 0.1})
    with pytest.raises(Ungradable):
        Appeals.model_validate({**RULE, "share": 0.1}).check("x", {})


def test_an_appeal_needs_the_memory_of_the_program_that_either_starts():
    program = {"name": "code", "memory_bytes": 1 << 28}

    for rule, second in ((program, "exact"), ("exact", program)):
        spec = {"name": "appeals", "rule": rule, "second": second, "share": 0.1}
        assert registry.build(spec).program_bytes() == 1 << 28
