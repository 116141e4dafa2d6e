"""Asking a run how it stands: whoever answers late is waited for, and who does not answer is named."""

from collections.abc import Mapping

from broker.memory import MemoryBus
from broker.memory_state import MemoryServer
from ops.asking import look_at_all
from ops.progress import silent_roles


class BusyBus(MemoryBus):
    """One of its processes answers only when it is asked for the third time."""

    asked = 0

    async def ask_status(self, wait_s: float) -> list[Mapping[str, object]]:
        self.asked += 1
        light: dict[str, object] = {"role": "dispatcher,verifier,policy,recorder", "host": "h"}
        found: list[Mapping[str, object]] = [
            {**light, "pid": 1, "turn": self.asked},
            {"role": "rollout", "host": "h", "pid": 2},
        ]
        return found + [{"role": "learner", "host": "h", "pid": 3}] * (self.asked >= 3)


async def test_a_process_that_answers_late_is_waited_for_and_each_is_told_once():
    bus = BusyBus(MemoryServer(), "run")

    pulse = await look_at_all(bus, 0.0, 10.0)

    told = [(one["pid"], one.get("turn")) for one in pulse.statuses]
    assert told == [(1, 3), (2, None), (3, None)]
    assert silent_roles(pulse.statuses) == []


async def test_a_role_that_never_answers_is_named_after_the_limit():
    pulse = await look_at_all(BusyBus(MemoryServer(), "run"), 0.0, 0.0)

    assert silent_roles(pulse.statuses) == ["learner"]
