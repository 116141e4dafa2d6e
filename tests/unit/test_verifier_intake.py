"""What a mistaken rollout worker sends is refused with what is wrong, before anything is judged."""

import numpy as np
import pytest

from broker.arrays import logprob_array, pack
from broker.errors import Poison
from broker.messages import GroupGenerated
from tests.builders import a_generated, a_generation, a_request, a_sample
from workers.verifiers.intake import refuse_mistaken

REQUEST = a_request(size=2, requested_version=1)


def changed(**fields: object):
    return REQUEST.model_copy(update=fields)


def answers(*generations: object, **changes: object) -> GroupGenerated:
    return a_generated(REQUEST).model_copy(update={"generations": generations} | changes)


def good(index: int, **changes: object):
    return a_generation(index, **({"version": 1} | changes))


@pytest.mark.parametrize(
    ("event", "told"),
    {
        "foreign request": (
            answers(good(0), good(1), request=a_request("00000009-0-0", size=2)),
            "answers of group 00000001-0-0 to the request of 00000009-0-0",
        ),
        "another gold": (
            answers(good(0), good(1), request=changed(sample=a_sample(target="7"))),
            "not the stored one: other sample",
        ),
        "another verifier": (
            answers(request=changed(sample=a_sample(verifier={"name": "/tmp/mine.py:Mine"}))),
            "not the stored one: other sample",
        ),
        "another size and attempt, in a failure": (
            answers(request=changed(size=3, attempt=1), status="failed", reason="engine error"),
            "not the stored one: other attempt, size",
        ),
        "one too few": (answers(good(0)), r"answers \[0\]; expected 0 to 1"),
        "one twice": (answers(good(0), good(0)), r"answers \[0, 0\]"),
        "one too many": (answers(good(0), good(1), good(2)), r"answers \[0, 1, 2\]"),
        "too long": (answers(good(0), good(1, tokens=9)), "answer 1 has 9 tokens; at most 8"),
        "too old": (answers(good(0), good(1, version=0)), "answer 1 is of weights version 0; 1 or"),
        "token ids as floats": (
            answers(good(0, token_ids=logprob_array(np.ones(3))), good(1)),
            "answer 0: token_ids is <f4",
        ),
        "log-probabilities in two dimensions": (
            answers(good(0), good(1, logprobs=pack(np.ones((3, 1)), "<f4"))),
            r"answer 1: logprobs is <f4 of shape \(3, 1\)",
        ),
    }.values(),
)
def test_what_is_wrong_is_told(event: GroupGenerated, told: str):
    with pytest.raises(Poison, match=told):
        refuse_mistaken(event, REQUEST)


def test_answers_in_any_order_and_with_any_numbers_pass():
    refuse_mistaken(answers(good(1, logprobs=logprob_array(np.full(3, np.nan))), good(0)), REQUEST)


def test_a_failure_needs_no_answers():
    refuse_mistaken(answers(status="failed", reason="engine error"), REQUEST)
