"""Where an answer ends, and which jobs never begin."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.rollout_models import VOCABULARY, a_job, a_pair, answers, decode, own_logprobs
from workers.rollout.engine import Answer, Job

torch.set_num_threads(1)


def greedy(folder: Path, ends: set[int], *, max_tokens: int, family: str = "llama") -> Answer:
    """The likeliest answer of one model when these tokens end an answer."""
    decoder, _ = a_pair(folder, family, ends=frozenset(ends))
    (result,) = decode(decoder, [a_job(seeds=(1,), temperature=0, max_tokens=max_tokens)])
    return answers(result)[0]


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_the_first_end_token_is_kept_and_nothing_after_it(tmp_path: Path, family: str):
    free = greedy(tmp_path, set(), max_tokens=20, family=family)
    end = int(free.token_ids[3])
    first = free.token_ids.tolist().index(end)

    answer = greedy(tmp_path, {end}, max_tokens=20, family=family)

    assert (free.finish_reason, len(free.token_ids)) == ("length", 20)
    assert answer.finish_reason == "stop"
    assert answer.token_ids.tolist() == free.token_ids[: first + 1].tolist()
    np.testing.assert_allclose(answer.logprobs, free.logprobs[: first + 1], atol=1e-5)


def test_an_end_token_at_the_limit_is_a_stop(tmp_path: Path):
    free = greedy(tmp_path, set(), max_tokens=20)
    end = int(free.token_ids[3])
    length = free.token_ids.tolist().index(end) + 1

    at_limit = greedy(tmp_path, {end}, max_tokens=length)
    before_limit = greedy(tmp_path, {end}, max_tokens=length - 1)

    assert (at_limit.finish_reason, len(at_limit.token_ids)) == ("stop", length)
    assert (before_limit.finish_reason, len(before_limit.token_ids)) == ("length", length - 1)


def test_any_of_several_end_tokens_ends_an_answer(tmp_path: Path):
    free = greedy(tmp_path, set(), max_tokens=20)
    early, late = int(free.token_ids[2]), int(free.token_ids[4])
    firsts = [free.token_ids.tolist().index(end) for end in (early, late)]

    answer = greedy(tmp_path, {early, late, VOCABULARY + 5}, max_tokens=20)

    assert answer.finish_reason == "stop"
    assert len(answer.token_ids) == min(firsts) + 1


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (a_job([5] * 57, max_tokens=8), "exceed the model's 64 positions"),
        (a_job([5, VOCABULARY]), "outside the model's vocabulary"),
        (a_job([5, -1]), "outside the model's vocabulary"),
    ],
)
def test_a_job_that_can_never_be_answered_is_refused(tmp_path: Path, job: Job, reason: str):
    decoder, _ = a_pair(tmp_path)

    assert reason in str(decoder.limits.refusal(job))


def test_a_job_that_just_fits_is_answered_to_its_end(tmp_path: Path):
    decoder, model = a_pair(tmp_path, ends=frozenset())
    job = a_job([5] * 56, (1,), temperature=0, max_tokens=8)

    assert decoder.limits.refusal(job) is None
    (result,) = decode(decoder, [job])

    expected = own_logprobs(model, job.prompt_ids, answers(result)[0].token_ids)
    np.testing.assert_allclose(answers(result)[0].logprobs, expected.max(-1), atol=1e-4)
