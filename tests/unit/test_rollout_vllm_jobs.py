"""What is said to vLLM and what is made of its answers, without vLLM."""

from dataclasses import dataclass

import numpy as np
import pytest

from broker.messages import Sampling, VersionSpan
from tests.rollout_models import a_job
from workers.rollout.engine import EngineError, Job
from workers.rollout.limits import Limits
from workers.rollout.vllm_jobs import Row, parameters, prompt, refusal

LIMITS = Limits(vocabulary=40, positions=64)


@dataclass
class Told:
    """As vLLM's `Logprob`."""

    logprob: float


@dataclass
class Span:
    """As vLLM's `WeightVersionSpan`."""

    version: str
    start: int
    end: int


def a_job_with(**sampling: float) -> Job:
    job = a_job()
    return Job(job.name, job.prompt_ids, job.seeds, Sampling(max_tokens=8, **sampling))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sampling", "said"),
    [
        ({"temperature": 1.0, "top_p": 0.9}, "0.9"),
        ({"temperature": 1.0, "top_k": 5}, "5"),
        ({"temperature": 1.0, "min_p": 0.1}, "0.1"),
        ({"temperature": 1.0, "repetition_penalty": 1.1}, "1.1"),
        ({"temperature": 0.001}, "temperature 0.001; vLLM needs 0 or at least 0.01"),
    ],
)
def test_what_would_change_the_distribution_unseen_is_refused(
    sampling: dict[str, float], said: str
):
    assert said in (refusal(a_job_with(**sampling), LIMITS) or "")


@pytest.mark.parametrize(
    ("prompt_ids", "said"),
    [
        ([5] * 57, "57 tokens and max_tokens 8 exceed the model's 64 positions"),
        ([40], "vocabulary 0..39"),
        ([-1], "vocabulary 0..39"),
    ],
)
def test_prompts_that_the_model_cannot_take_are_refused(prompt_ids: list[int], said: str):
    assert said in (refusal(a_job(prompt_ids), LIMITS) or "")


def test_a_prompt_that_just_fits_is_taken():
    assert refusal(a_job([5] * 56), LIMITS) is None


def test_every_parameter_of_the_distribution_is_stated_and_one_answer_asked_for():
    said = parameters(a_job_with(temperature=0.6), 2**63 - 1, frozenset({2, 7}))

    neutral = {
        "n": 1, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0,
        "presence_penalty": 0.0, "frequency_penalty": 0.0,
    }  # fmt: skip
    assert {key: said[key] for key in neutral} == neutral
    assert (said["temperature"], said["seed"], said["max_tokens"]) == (0.6, 2**63 - 1, 8)
    assert (said["ignore_eos"], said["stop_token_ids"]) == (True, [2, 7])


def test_prompts_of_two_versions_share_no_cached_prefix():
    job = a_job([5, 6])

    assert prompt(job, 3)["prompt_token_ids"] == [5, 6]
    assert prompt(job, 3)["cache_salt"] != prompt(job, 4)["cache_salt"]


def test_pieces_make_an_answer_with_the_engines_own_versions():
    row = Row(a_job(), started_at_us=1)
    row.add([5, 6], [{9: Told(-1.0), 5: Told(-0.5)}, {6: Told(-0.25)}])
    row.add([2], [{2: Told(1e-9)}])

    answer = row.finished("stop", [Span("3", 0, 2), Span("4", 2, 3)], 9)

    assert answer.token_ids.tolist() == [5, 6, 2]
    np.testing.assert_array_equal(answer.logprobs, np.array([-0.5, -0.25, 0.0], np.float32))
    assert answer.spans == (
        VersionSpan(version=3, first=0, end=2),
        VersionSpan(version=4, first=2, end=3),
    )
    assert (answer.finish_reason, answer.started_at_us, answer.finished_at_us) == ("stop", 1, 9)


@pytest.mark.parametrize("logprobs", [None, [], [{6: Told(-1.0)}]])
def test_a_token_without_its_log_probability_is_an_error(logprobs: list[dict[int, Told]] | None):
    with pytest.raises(EngineError, match="log-probabilit"):
        Row(a_job(), 1).add([5], logprobs)


@pytest.mark.parametrize("logprob", [0.01, float("nan")])
def test_a_log_probability_that_is_none_is_an_error_not_a_certainty(logprob: float):
    with pytest.raises(EngineError, match="expected at most 0"):
        Row(a_job(), 1).add([5], [{5: Told(logprob)}])


@pytest.mark.parametrize(("reason", "versions"), [("abort", [Span("1", 0, 1)]), ("stop", None)])
def test_an_answer_cut_off_or_of_unknown_versions_is_an_error(
    reason: str, versions: list[Span] | None
):
    row = Row(a_job(), 1)
    row.add([5], [{5: Told(-1.0)}])

    with pytest.raises(EngineError):
        row.finished(reason, versions, 9)
