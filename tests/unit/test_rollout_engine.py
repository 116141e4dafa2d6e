"""The torch engine as callers meet it: many at once, weights swapped, failures that harm nobody else."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.rollout_models import VOCABULARY, a_folder, a_job, a_model, answers, save_weights, until
from workers.rollout.engine import BadWeights, EngineError, Refused
from workers.rollout.torch_engine import TorchEngine

torch.set_num_threads(1)


def an_engine(folder: Path, *, max_rows: int = 8) -> TorchEngine:
    return TorchEngine(folder, device="cpu", dtype="float32", max_rows=max_rows, threads=1)


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


async def test_weights_are_swapped_without_aborting_anything(engine: TorchEngine, tmp_path: Path):
    new = save_weights(a_model(seed=1), tmp_path / "w1")
    jobs = [a_job([5], tuple(range(8)), max_tokens=60) for _ in range(3)]
    working = asyncio.create_task(engine.generate(jobs))
    await until(lambda: engine.sampled >= 8)

    await engine.load(new, 1)

    assert engine.version == 1
    seen: set[int] = set()
    for result in await working:
        for answer in answers(result):
            versions = [span.version for span in answer.spans]
            assert versions in ([0], [1], [0, 1])
            assert answer.spans[-1].end == len(answer.token_ids)
            seen.update(versions)
    assert seen == {0, 1}


async def test_a_job_without_weights_is_an_error_not_an_answer(tmp_path: Path):
    engine = an_engine(a_folder(tmp_path))

    with pytest.raises(EngineError, match="no model weights"):
        await engine.generate([a_job()])
    await engine.close()


async def test_a_job_that_can_never_be_answered_is_refused_beside_good_ones(engine: TorchEngine):
    good, long = a_job([5], (1,)), a_job([5] * 60, (1,), max_tokens=8)

    first, refused, last = await engine.generate([good, long, good])

    assert isinstance(refused, Refused)
    assert "60 tokens and max_tokens 8 exceed the model's 64 positions" in refused.reason
    assert ids(first) == ids(last)


async def test_a_call_that_is_cancelled_leaves_no_rows(engine: TorchEngine):
    call = asyncio.create_task(engine.generate([a_job([5], (1, 2, 3), max_tokens=60)]))
    await until(lambda: engine.rows == 3)

    call.cancel()
    (result,) = await engine.generate([a_job([6], (1,), max_tokens=4)])

    assert len(answers(result)) == 1
    assert engine.rows == 0


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


async def test_closing_ends_every_call_within_seconds(tmp_path: Path):
    engine = an_engine(a_folder(tmp_path))
    await engine.load(save_weights(a_model(), tmp_path / "w"), 0)
    jobs = [a_job([5], tuple(range(8)), max_tokens=60) for _ in range(200)]
    call = asyncio.create_task(engine.generate(jobs))
    await asyncio.sleep(0.05)

    async with asyncio.timeout(5):
        await engine.close()
        with pytest.raises(EngineError, match="closed"):
            await call
    with pytest.raises(EngineError, match="closed"):
        await engine.generate([a_job()])
    with pytest.raises(EngineError, match="closed"):
        await engine.load(tmp_path / "w", 1)


def _spoilt(tensors: dict[str, torch.Tensor], how: str) -> dict[str, torch.Tensor]:
    name = "model.layers.1.mlp.up_proj.weight"
    match how:
        case "missing":
            del tensors[name]
        case "unknown":
            tensors["extra"] = torch.zeros(1)
        case "shape":
            tensors[name] = tensors[name][:-1].contiguous()
        case "not finite":
            tensors[name][0, 0] = float("nan")
    return tensors


@pytest.mark.parametrize("how", ["missing", "unknown", "shape", "not finite", "cut off"])
async def test_weights_that_do_not_fit_leave_the_old_ones_in_force(
    engine: TorchEngine, tmp_path: Path, how: str
):
    (before,) = await engine.generate([a_job(temperature=0)])
    bad = tmp_path / "bad"
    save_file(_spoilt(load_file(save_weights(a_model(seed=1), tmp_path / "w1")), how), bad)
    if how == "cut off":
        bad.write_bytes(bad.read_bytes()[:-100])

    with pytest.raises(BadWeights, match=str(bad)):
        await engine.load(bad, 1)

    assert engine.version == 0
    (after,) = await engine.generate([a_job(temperature=0)])
    assert ids(before) == ids(after)


async def test_weights_stay_in_force_when_their_file_is_overwritten(
    engine: TorchEngine, tmp_path: Path
):
    (before,) = await engine.generate([a_job(temperature=0)])

    (tmp_path / "w0").write_bytes(b"\0" * (tmp_path / "w0").stat().st_size)

    (after,) = await engine.generate([a_job(temperature=0)])
    assert ids(before) == ids(after)


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
