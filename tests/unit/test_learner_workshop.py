"""What the learner computes, where engines compute on the same GPU."""

import asyncio
from pathlib import Path

import pytest

from broker.gpu_turn import GpuTurn
from broker.telemetry import Health
from learner.interrupt import Interrupted
from learner.workshop import Workshop


def a_workshop(path: Path, stop: asyncio.Event) -> Workshop:
    return Workshop(
        threads=1, deterministic=False, health=Health("learner"), stop=stop,
        turn=GpuTurn.of_learner(path),
    )  # fmt: skip


async def test_a_step_waits_for_the_engines_and_they_for_it(tmp_path: Path):
    engine, other = GpuTurn.of_engine(tmp_path), GpuTurn.of_engine(tmp_path)
    engine.take()
    with a_workshop(tmp_path, asyncio.Event()) as workshop:
        step = asyncio.create_task(workshop.do_alone("step 1", other.take))
        await workshop.do("checkpoint 0", lambda: None)
        await asyncio.sleep(0.2)
        assert not step.done()

        engine.give()

        assert await step is False, "an engine that asked while the step was taken"
        assert other.take(), "afterwards"


async def test_a_learner_asked_to_stop_does_not_wait_for_its_turn(tmp_path: Path):
    stop = asyncio.Event()
    GpuTurn.of_engine(tmp_path).take()
    with a_workshop(tmp_path, stop) as workshop:
        step = asyncio.create_task(workshop.do_alone("step 1", lambda: None))
        stop.set()

        async with asyncio.timeout(5):
            with pytest.raises(Interrupted):
                await step


async def test_a_step_that_fails_gives_the_turn_back(tmp_path: Path):
    engine = GpuTurn.of_engine(tmp_path)
    with a_workshop(tmp_path, asyncio.Event()) as workshop, pytest.raises(ZeroDivisionError):
        await workshop.do_alone("step 1", lambda: 1 / 0)

    assert engine.take()
