"""What is the torch engine's own; what it shares with vLLM is in tests/contract/test_engines.py."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.rollout_models import VOCABULARY, a_folder, a_job, a_model, answers, save_weights
from workers.rollout import torch_engine
from workers.rollout.decoder import Decoder
from workers.rollout.engine import EngineError
from workers.rollout.torch_engine import TorchEngine

torch.set_num_threads(1)


def an_engine(folder: Path, **options: Any) -> TorchEngine:
    options = {"max_rows": 8} | options
    return TorchEngine(folder, device="cpu", dtype="float32", threads=1, **options)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[TorchEngine]:
    engine = an_engine(a_folder(tmp_path))
    await engine.load(save_weights(a_model(), tmp_path / "w0"), 0)
    yield engine
    await engine.close()


def ids(result: object) -> list[list[int]]:
    return [answer.token_ids.tolist() for answer in answers(result)]


async def test_callers_are_served_at_once_and_get_what_they_would_alone(engine: TorchEngine):
    jobs = [a_job([5 + i, 6], (i, 100 + i), max_tokens=12) for i in range(6)]

    together = await asyncio.gather(*(engine.generate([job]) for job in jobs))
    alone = [await engine.generate([job]) for job in jobs]

    assert [ids(result) for (result,) in together] == [ids(result) for (result,) in alone]
    assert engine.rows == 0
    assert engine.sampled == 2 * sum(len(row) for (result,) in alone for row in ids(result))


async def test_a_cohort_decoded_again_has_the_same_bits(engine: TorchEngine, tmp_path: Path):
    cohort = [a_job([5 + i] * (1 + i), (i, 50 + i, 90 + i), max_tokens=9) for i in range(5)]
    other = an_engine(tmp_path)
    await other.load(tmp_path / "w0", 0)

    runs = [await e.generate(cohort) for e in (engine, engine, other)]
    await other.close()

    bits = [
        [(a.token_ids.tobytes(), a.logprobs.tobytes()) for result in run for a in answers(result)]
        for run in runs
    ]
    assert bits[0] == bits[1] == bits[2]


async def test_an_engine_that_breaks_tells_every_caller_and_works_again(
    engine: TorchEngine, tmp_path: Path
):
    head = engine._decoder.model.get_output_embeddings().weight
    whole = head.data
    head.data = whole[:, :-1]
    calls = [engine.generate([a_job([5 + i], (1, 2))]) for i in range(3)]

    outcomes = await asyncio.gather(*calls, return_exceptions=True)

    assert all(isinstance(outcome, EngineError) for outcome in outcomes), outcomes
    head.data = whole
    (result,) = await engine.generate([a_job([5], (1, 2))])
    assert len(answers(result)) == 2


async def test_only_the_decoding_thread_computes_on_several_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    threads: dict[str, int] = {}

    def watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def watching(*args: Any, **settings: Any) -> Any:
            threads[name] = torch.get_num_threads()
            return function(*args, **settings)

        return watching

    for name in ("build_model", "stage", "install"):
        monkeypatch.setattr(torch_engine, name, watched(name, getattr(torch_engine, name)))
    monkeypatch.setattr(Decoder, "advance", watched("advance", Decoder.advance))
    folder, weights = a_folder(tmp_path), save_weights(a_model(), tmp_path / "w")
    with ThreadPoolExecutor(1) as builder:
        # As in a process whose OMP_NUM_THREADS is that of the engine.
        builder.submit(torch.set_num_threads, 3).result()
        make = partial(TorchEngine, folder, device="cpu", dtype="float32", max_rows=8, threads=3)
        engine = builder.submit(make).result()
    await engine.load(weights, 0)
    await engine.generate([a_job()])
    await engine.close()

    assert threads == {"build_model": 1, "stage": 1, "install": 3, "advance": 3}


async def test_bfloat16_answers_stay_near_those_of_float32(tmp_path: Path):
    folder, weights = a_folder(tmp_path), save_weights(a_model(), tmp_path / "w")
    engine = TorchEngine(folder, device="cpu", dtype="bfloat16", max_rows=8, threads=1)
    exact = an_engine(folder)
    for one in (engine, exact):
        await one.load(weights, 0)

    job = a_job([5, 6, 7, 8], (1,), max_tokens=1, temperature=0)
    (half,), (whole,) = await engine.generate([job]), await exact.generate([job])
    for one in (engine, exact):
        await one.close()

    assert answers(half)[0].logprobs.dtype == "float32"
    assert abs(answers(half)[0].logprobs[0] - answers(whole)[0].logprobs[0]) < 0.1
    assert 0 <= int(answers(half)[0].token_ids[0]) < VOCABULARY
