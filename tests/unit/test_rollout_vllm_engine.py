"""The engine over vLLM from start to close, over stand-ins for the engines that it starts."""

import asyncio
import gc
import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ops.processes import descendants
from tests.rollout_models import a_folder, a_job, a_model, answers, save_weights, until
from tests.vllm_stand_in import Starts
from workers.rollout.engine import EngineError
from workers.rollout.settings import VllmSettings
from workers.rollout.vllm_engine import WATCH_S, VllmEngine
from workers.rollout.vllm_reaper import POLL_S


@asynccontextmanager
async def an_engine(
    path: Path, starts: Starts, max_rows: int = 8
) -> AsyncIterator[tuple[VllmEngine, Path]]:
    """And a file of weights for it."""
    engine = VllmEngine(
        a_folder(path / "model"), cache_dir=path / "cache", device="cpu", dtype="float32",
        max_rows=max_rows, threads=1, settings=VllmSettings(), start=starts,
    )  # fmt: skip
    try:
        yield engine, save_weights(a_model(), path / "w")
    finally:
        async with asyncio.timeout(10):
            await engine.close()
    assert not list((path / "cache").iterdir())


def refuse() -> None:
    raise RuntimeError("no memory")


async def test_a_start_that_fails_is_told_and_the_next_weights_start_another(tmp_path: Path):
    starts = Starts()
    async with an_engine(tmp_path, starts) as (engine, weights):
        starts.next = refuse
        with pytest.raises(EngineError, match="did not start: RuntimeError: no memory"):
            await engine.load(weights, 0)
        left = [file.name for home in (tmp_path / "cache").iterdir() for file in home.iterdir()]
        starts.next = lambda: None
        await engine.load(weights, 1)

        assert not left, "the folder of the failed start"
        assert engine.version == 1


async def test_an_engine_that_dies_is_buried_and_the_next_weights_start_another(tmp_path: Path):
    starts = Starts()
    async with an_engine(tmp_path, starts) as (engine, weights):
        await engine.load(weights, 0)

        with capture_logs() as told:
            starts.made[0].errored = True
            await until(lambda: engine.version is None)
        await engine.load(weights, 1)

        assert [event["event"] for event in told] == ["vllm_died"]
        assert starts.made[0].calls[-1] == "shutdown", "before the second was started"
        assert (len(starts.made), engine.version) == (2, 1)


async def test_an_update_that_breaks_the_engine_ends_it_once_and_is_no_death(tmp_path: Path):
    starts = Starts()
    async with an_engine(tmp_path, starts) as (engine, weights):
        await engine.load(weights, 0)
        starts.made[0].refused |= {starts.made[0].weights, "v1-1"}

        with capture_logs() as told:
            with pytest.raises(EngineError, match="refused weights"):
                await engine.load(weights, 1)
            await asyncio.sleep(2 * WATCH_S)

        assert engine.version is None
        assert starts.made[0].calls.count("shutdown") == 1
        assert not told


async def test_a_death_during_an_update_is_told_to_who_asked_for_it(tmp_path: Path):
    starts = Starts()
    async with an_engine(tmp_path, starts) as (engine, weights):
        await engine.load(weights, 0)
        starts.made[0].hanging.add("collective_rpc")
        loading = asyncio.create_task(engine.load(weights, 1))
        await until(lambda: "take_weights v1-1" in starts.made[0].calls)

        with capture_logs() as told:
            starts.made[0].errored = True
            async with asyncio.timeout(5):
                with pytest.raises(EngineError, match="ended while it took version 1"):
                    await loading
            await asyncio.sleep(2 * WATCH_S)

        assert [event["event"] for event in told] == ["vllm_died"]
        assert engine.version is None
        assert starts.made[0].calls.count("shutdown") == 1


async def test_closing_does_not_wait_for_an_update_that_hangs(tmp_path: Path):
    starts = Starts()
    async with an_engine(tmp_path, starts) as (engine, weights):
        await engine.load(weights, 0)
        starts.made[0].hanging.add("collective_rpc")
        loading = asyncio.create_task(engine.load(weights, 1))
        await until(lambda: "take_weights v1-1" in starts.made[0].calls)

        async with asyncio.timeout(5):
            await engine.close()
            (outcome,) = await asyncio.gather(loading, return_exceptions=True)

        assert isinstance(outcome, asyncio.CancelledError | EngineError)
        assert starts.made[0].calls[-1] == "shutdown"


async def test_closing_is_told_to_groups_at_work_and_to_those_that_waited_for_room(tmp_path: Path):
    starts = Starts()
    async with an_engine(tmp_path, starts, max_rows=2) as (engine, weights):
        await engine.load(weights, 0)
        working = [
            asyncio.create_task(engine.generate([a_job(seeds=(1, 2), name=f"g{n}")]))
            for n in range(3)
        ]
        await until(lambda: len(starts.made[0].salts) == 2)

        async with asyncio.timeout(5):
            await engine.close()
            outcomes = await asyncio.gather(*working, return_exceptions=True)

        assert [str(one) for one in outcomes] == [
            "g0: the engine was closed",
            "the engine was closed",
            "the engine was closed",
        ]
        assert len(starts.made[0].salts) == 2


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
async def test_closing_during_a_start_ends_nothing_while_the_process_lives(tmp_path: Path):
    """The reaper would end all below the process; this one may have other children."""
    starts, go = Starts(), threading.Event()
    starts.next = lambda: go.wait(30) and None
    before = set(descendants(os.getpid()))
    sibling = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        async with an_engine(tmp_path, starts) as (engine, weights):
            loading = asyncio.create_task(engine.load(weights, 0))
            await until(lambda: bool(set(descendants(os.getpid())) - before - {sibling.pid}))
            (reaper,) = set(descendants(os.getpid())) - before - {sibling.pid}
            await asyncio.sleep(2 * POLL_S)

            async with asyncio.timeout(5):
                await engine.close()
            await asyncio.gather(loading, return_exceptions=True)

        await asyncio.sleep(2 * POLL_S)
        assert sibling.returncode is None
        assert reaper in descendants(os.getpid()), "it stays until the process ends"
        os.kill(reaper, signal.SIGKILL)
        del engine, loading
        gc.collect()
    finally:
        go.set()
        sibling.kill()
        await sibling.wait()


async def test_an_ended_answer_frees_its_place_before_its_group_has_ended(tmp_path: Path):
    starts = Starts()
    async with an_engine(tmp_path, starts, max_rows=2) as (engine, weights):
        await engine.load(weights, 0)
        llm = starts.made[0]
        working = [
            asyncio.create_task(engine.generate([a_job(seeds=seeds)])) for seeds in [(1, 2), (3,)]
        ]
        await until(lambda: len(llm.salts) == 2)

        # The answers take turns: the first of the pair ends, the second lacks a token.
        for _ in range(3):
            llm.steps.release()
        await until(lambda: len(llm.salts) == 3)

        for _ in range(3):
            llm.steps.release()
        results = [await task for task in working]
        assert [len(answers(result)) for (result,) in results] == [2, 1]
        assert engine.rows == 0


async def test_what_a_killed_process_left_is_removed_and_that_of_a_living_one_kept(tmp_path: Path):
    gone = await asyncio.create_subprocess_exec("true")
    await gone.wait()
    async with an_engine(tmp_path, Starts()):
        (own,) = (tmp_path / "cache").iterdir()
    prefix, pid, started, _ = own.name.rsplit("-", 3)
    assert int(pid) == os.getpid()
    left = [
        tmp_path / f"cache/{prefix}-{gone.pid}-{started}-a",
        # Another life under the same process id, as in a container.
        tmp_path / f"cache/{prefix}-{pid}-{int(started) - 1}-b",
    ]
    others = [tmp_path / f"cache/{prefix}-{pid}-{started}-c", tmp_path / "cache/train"]
    for folder in (*left, *others):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"x")

    engine = VllmEngine(
        tmp_path / "model", cache_dir=tmp_path / "cache", device="cpu", dtype="float32",
        max_rows=1, threads=1, settings=VllmSettings(), start=Starts(),
    )  # fmt: skip

    assert not any(folder.exists() for folder in left)
    assert all((folder / "model.safetensors").exists() for folder in others)
    await engine.close()
