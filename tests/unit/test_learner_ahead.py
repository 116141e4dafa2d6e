"""Gradients of the next step while the one before it is stored and told of."""

import asyncio
import threading
import time

import pytest

from broker.memory import MemoryBus
from broker.messages import Event, StepCommitted, StepPlanned
from learner.trainer import Trainer
from tests.learner_lives import STEPS, Run, a_server, of_kind, outcome, until, windows, written

WAIT_S = 20.0


class Begins:
    """Counts the steps that were begun."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.changed = threading.Condition()
        begin, finish = Trainer.begin, Trainer.finish

        def counted(trainer: Trainer, rows):
            found = begin(trainer, rows)
            with self.changed:
                self.count += 1
                self.changed.notify_all()
            return found

        def slowly(trainer: Trainer, begun, **how):
            time.sleep(0.2)  # meanwhile the next window is gathered, as in steps of any length
            return finish(trainer, begun, **how)

        monkeypatch.setattr(Trainer, "begin", counted)
        monkeypatch.setattr(Trainer, "finish", slowly)

    def reach(self, count: int) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.count >= count, WAIT_S)


class WaitingBus(MemoryBus):
    """A step is committed only once the gradients of the next one are there."""

    def __init__(self, server, begins: Begins) -> None:
        super().__init__(server, "r")
        self.begins = begins

    async def publish(self, event: Event, **expect) -> int:
        if isinstance(event, StepCommitted) and event.step < STEPS:
            assert await asyncio.to_thread(self.begins.reach, event.step + 1), event.step
        return await super().publish(event, **expect)


async def test_the_next_step_begins_before_the_last_one_is_told_of_and_comes_out_the_same(
    tmp_path, monkeypatch
):
    begins = Begins(monkeypatch)
    server = await a_server(windows())
    ahead = await Run(tmp_path / "ahead", server, checkpoint_every=100).to_the_end(
        WaitingBus(server, begins)
    )
    assert begins.count == STEPS, "each step is begun once"

    one_by_one = await a_server([])
    life = asyncio.create_task(
        Run(tmp_path / "after", one_by_one, checkpoint_every=100).to_the_end()
    )
    for step, window in enumerate(windows(), start=1):
        await MemoryBus(one_by_one, "r").publish_batch(window)
        await until(one_by_one, lambda found, step=step: f"weights {step}" in written(found))
    after = await life

    assert outcome(ahead) == outcome(after)
    assert written(ahead) == written(after), "in the order in which others see it"
    plans = [[p.groups for p in of_kind(found, StepPlanned)] for found in (ahead, after)]
    assert plans[0] == plans[1]
