"""An engine that shares its GPU with the learner, over stand-ins for vLLM: asleep unless it is used."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broker.gpu_turn import GpuTurn
from tests.rollout_models import a_folder, a_job, a_model, answers, save_weights, until
from tests.vllm_stand_in import Starts
from workers.rollout.engine import EngineError
from workers.rollout.settings import VllmSettings
from workers.rollout.vllm_engine import VllmEngine
from workers.rollout.vllm_turns import Turns


@asynccontextmanager
async def an_engine(path: Path, starts: Starts) -> AsyncIterator[tuple[VllmEngine, Path, GpuTurn]]:
    """And a file of weights for it, and the learner's side of the turn."""
    engine = VllmEngine(
        a_folder(path / "model"), cache_dir=path / "cache", device="cpu", dtype="float32",
        max_rows=8, threads=1, settings=VllmSettings(), start=starts,
        turn=GpuTurn.of_engine(path),
    )  # fmt: skip
    try:
        yield engine, save_weights(a_model(), path / "w"), GpuTurn.of_learner(path)
    finally:
        async with asyncio.timeout(10):
            await engine.close()


async def test_an_engine_with_nothing_to_answer_sleeps_before_the_learner_has_the_gpu(
    tmp_path: Path,
):
    starts = Starts()
    async with an_engine(tmp_path, starts) as (engine, weights, learner):
        await engine.load(weights, 0)
        llm = starts.made[0]
        working = asyncio.create_task(engine.generate([a_job(seeds=(1, 2))]))
        await until(lambda: len(llm.salts) == 2)
        assert not learner.take(), "answers are under way"

        for _ in range(4):
            llm.steps.release()
        await working
        await until(learner.take)

        assert llm.asleep == {"weights", "kv_cache"}
        assert llm.calls[-1] == "sleep 1 wait"


async def test_new_weights_are_taken_before_there_is_room_for_keys_and_values(tmp_path: Path):
    starts = Starts()
    async with an_engine(tmp_path, starts) as (engine, weights, learner):
        await engine.load(weights, 0)
        await until(learner.take)
        llm = starts.made[0]
        llm.calls.clear()
        learner.give()

        await engine.load(weights, 1)

        assert llm.calls == ["wake weights", "take_weights v1-1", "label 1", "wake kv_cache"]
        assert engine.version == 1
        assert not llm.asleep


async def test_a_group_asked_for_before_new_weights_wakes_the_engine_with_the_old_ones(
    tmp_path: Path,
):
    starts = Starts()
    async with an_engine(tmp_path, starts) as (engine, weights, learner):
        await engine.load(weights, 0)
        await until(learner.take)
        llm = starts.made[0]
        llm.steps = asyncio.Semaphore(4)
        working = asyncio.create_task(engine.generate([a_job(seeds=(1, 2))]))
        await asyncio.sleep(0.2)
        assert not llm.salts, "the learner computes"

        learner.give()
        (result,) = await working

        assert [answer.spans[0].version for answer in answers(result)] == [0, 0]
        assert llm.calls.count("wake all") == 1, "one for both answers"


async def test_an_engine_that_wakes_with_other_weights_is_ended(tmp_path: Path):
    starts = Starts()
    async with an_engine(tmp_path, starts) as (engine, weights, learner):
        await engine.load(weights, 0)
        await until(learner.take)
        starts.made[0].weights = "garbled"
        learner.give()

        with pytest.raises(EngineError, match="woke with other weights"):
            await engine.generate([a_job()])

        assert engine.version is None
        assert starts.made[0].calls[-1] == "shutdown"


async def test_an_engine_that_cannot_sleep_is_ended_before_the_learner_has_the_gpu(tmp_path: Path):
    starts = Starts()
    async with an_engine(tmp_path, starts) as (engine, weights, learner):
        await engine.load(weights, 0)
        starts.made[0].broken.add("sleep")

        await until(learner.take)

        assert engine.version is None
        assert starts.made[0].calls[-1] == "shutdown"


async def test_a_death_gives_the_turn_back(tmp_path: Path):
    starts = Starts()
    async with an_engine(tmp_path, starts) as (engine, weights, learner):
        await engine.load(weights, 0)
        working = asyncio.create_task(engine.generate([a_job()]))
        await until(lambda: bool(starts.made[0].salts))

        starts.made[0].errored = True
        starts.made[0].steps.release()
        with pytest.raises(EngineError):
            await working
        await until(learner.take)

        assert engine.version is None


async def test_an_engine_closed_while_it_waits_for_its_turn_ends_at_once(tmp_path: Path):
    async with an_engine(tmp_path, Starts()) as (engine, weights, learner):
        learner.take()
        loading = asyncio.create_task(engine.load(weights, 0))
        await asyncio.sleep(0.1)

        async with asyncio.timeout(5):
            await engine.close()
            (outcome,) = await asyncio.gather(loading, return_exceptions=True)

        assert isinstance(outcome, asyncio.CancelledError | EngineError)


async def test_a_learner_that_keeps_the_gpu_too_long_is_told(tmp_path: Path):
    learner = GpuTurn.of_learner(tmp_path)
    learner.take()
    turns = Turns(GpuTurn.of_engine(tmp_path), lambda: asyncio.sleep(0), limit_s=0.2)

    with pytest.raises(EngineError, match=r"the learner kept the GPU for 0\.2 s"):
        async with turns.use():
            pass

    await turns.close()
