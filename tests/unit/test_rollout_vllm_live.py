"""One vLLM engine's life, over a small stand-in for `AsyncLLM` that does as it is told."""

import asyncio
from pathlib import Path

import pytest

from tests.rollout_models import a_job, until
from tests.vllm_stand_in import StandIn, as_started
from workers.rollout.engine import BadWeights, EngineError
from workers.rollout.vllm_live import Live

ENDS = frozenset({2})


async def a_live(tmp_path: Path, limit_s: float = 60.0) -> tuple[Live, StandIn]:
    llm = StandIn()
    for name in ("v0", "v1", "v2"):
        (tmp_path / name).mkdir()
    live = Live(as_started(llm), tmp_path / "v0", 0, limit_s=limit_s)
    await live.begin()
    llm.calls.clear()
    return live, llm


async def test_an_update_pauses_reloads_labels_and_goes_on(tmp_path: Path):
    live, llm = await a_live(tmp_path)

    await live.update(tmp_path / "v1", 1)

    assert llm.calls == ["pause keep", "take_weights v1", "label 1", "resume"]
    assert live.version == 1
    assert not (tmp_path / "v0").exists(), "the weights that nobody needs any more"


async def test_an_answer_that_spans_an_update_is_kept_with_both_versions(tmp_path: Path):
    live, llm = await a_live(tmp_path)
    working = asyncio.create_task(live.answer(a_job(), 1, ENDS))
    llm.steps.release()
    await until(lambda: live.sampled == 1)

    await live.update(tmp_path / "v1", 1)
    llm.steps.release()

    answer = await working
    assert [(span.version, span.first, span.end) for span in answer.spans] == [(0, 0, 1), (1, 1, 2)]
    assert llm.aborted == 0


async def test_an_answer_not_begun_at_an_update_begins_again_under_the_new_salt(tmp_path: Path):
    live, llm = await a_live(tmp_path)
    working = asyncio.create_task(live.answer(a_job(), 1, ENDS))
    await until(lambda: llm.salts == ["v0"])

    await live.update(tmp_path / "v1", 1)
    for _ in range(3):
        llm.steps.release()

    answer = await working
    assert [span.version for span in answer.spans] == [1]
    assert llm.salts == ["v0", "v1"]
    assert live.rows == 0


async def test_weights_that_the_engine_refuses_leave_the_old_ones_in_force(tmp_path: Path):
    live, llm = await a_live(tmp_path)
    llm.refused.add("v1")

    with pytest.raises(BadWeights, match="a shape does not fit"):
        await live.update(tmp_path / "v1", 1)

    assert (live.version, llm.weights, llm.label) == (0, "v0", "0")
    assert llm.calls[-1] == "resume"
    await live.update(tmp_path / "v2", 2)
    assert (live.version, llm.weights) == (2, "v2")


async def test_an_engine_that_cannot_go_back_is_given_up(tmp_path: Path):
    live, llm = await a_live(tmp_path)
    llm.refused |= {"v0", "v1"}

    with pytest.raises(EngineError):
        await live.update(tmp_path / "v1", 1)

    assert live.version == 0


async def test_the_engines_death_is_told_to_answers_and_updates(tmp_path: Path):
    live, llm = await a_live(tmp_path)
    working = asyncio.create_task(live.answer(a_job(name="g7"), 1, ENDS))
    await until(lambda: llm.salts)

    llm.errored = True
    llm.steps.release()

    with pytest.raises(EngineError, match="g7: vLLM broke: Broken: gone"):
        await working
    with pytest.raises(EngineError, match="did not take version 1: Broken: gone"):
        await live.update(tmp_path / "v1", 1)
    assert live.dead
    assert live.rows == 0


async def test_closing_ends_every_answer_under_way(tmp_path: Path):
    live, llm = await a_live(tmp_path)
    working = [asyncio.create_task(live.answer(a_job(name="g7"), seed, ENDS)) for seed in range(3)]
    await until(lambda: len(llm.salts) == 3)

    async with asyncio.timeout(5):
        await live.close()
        outcomes = await asyncio.gather(*working, return_exceptions=True)

    assert [str(outcome) for outcome in outcomes] == ["g7: the engine was closed"] * 3
    assert "shutdown" in llm.calls


async def test_an_answer_that_is_cancelled_is_no_error_of_the_engine(tmp_path: Path):
    live, llm = await a_live(tmp_path)
    working = asyncio.create_task(live.answer(a_job(), 1, ENDS))
    await until(lambda: llm.salts)

    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working

    assert live.rows == 0


async def test_an_engine_that_hangs_in_an_update_is_given_up_in_time_and_not_resumed(
    tmp_path: Path,
):
    live, llm = await a_live(tmp_path, limit_s=0.3)
    llm.hanging |= {"collective_rpc", "resume_generation"}

    async with asyncio.timeout(5):
        with pytest.raises(EngineError, match="did not take version 1: TimeoutError"):
            await live.update(tmp_path / "v1", 1)

    assert live.version == 0
    assert "resume" not in llm.calls, "nobody knows what it holds"


@pytest.mark.parametrize("method", ["pause_generation", "collective_rpc", "update_weight_version"])
async def test_a_death_in_the_middle_of_an_update_is_told_at_once(tmp_path: Path, method: str):
    live, llm = await a_live(tmp_path)
    llm.hanging.add(method)
    updating = asyncio.create_task(live.update(tmp_path / "v1", 1))
    await asyncio.sleep(0.05)

    llm.errored = True

    async with asyncio.timeout(5):
        with pytest.raises(EngineError, match="ended while it took version 1"):
            await updating


async def test_closing_ends_an_update_under_way_and_the_answers_that_waited_for_it(tmp_path: Path):
    live, llm = await a_live(tmp_path)
    llm.hanging.add("collective_rpc")
    updating = asyncio.create_task(live.update(tmp_path / "v1", 1))
    await until(lambda: "take_weights v1" in llm.calls)
    waiting = asyncio.create_task(live.answer(a_job(name="g7"), 1, ENDS))

    async with asyncio.timeout(5):
        await live.close()
        with pytest.raises(EngineError, match="ended while it took version 1"):
            await updating
        with pytest.raises(EngineError, match="g7: the engine was closed"):
            await waiting
