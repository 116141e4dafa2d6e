"""Who acts for a role: one at a time, the next one soon after it is gone, and nobody who has lost it."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from broker.errors import Conflict, Replaced
from broker.lease import RELEASED, Holder, Timing, hold, this_machine, this_process
from broker.memory import MemoryBus
from broker.memory_state import MemoryServer
from broker.telemetry import Health

FAST = Timing(lease_s=0.4, renew_s=0.05, poll_s=0.02)
ELSEWHERE = Holder("learner@elsewhere:1:1", "another machine/pid:[1]", 1, "1")
LIMIT_S = 10.0


def a_bus(server: MemoryServer | None = None) -> MemoryBus:
    return MemoryBus(server or MemoryServer(), "run")


class Worker:
    """A process of the role, as far as its lease goes."""

    def __init__(self, bus: MemoryBus, timing: Timing = FAST) -> None:
        self.health = Health("learner")
        self.stop = asyncio.Event()
        self.done = asyncio.Event()
        self.began: float | None = None
        self.task = asyncio.create_task(
            hold(bus, "learner", self._work, health=self.health, stop=self.stop, timing=timing)
        )

    async def _work(self) -> None:
        self.began = time.monotonic()
        await self.done.wait()

    async def begins(self) -> float:
        await until(lambda: self.began is not None)
        assert self.began is not None
        return self.began

    @property
    def waits(self) -> list[str]:
        return [wait["for"] for wait in self.health.status()["waits"]]  # type: ignore[union-attr]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while True:
            if holds():
                return
            await asyncio.sleep(0.005)


async def test_the_first_one_works_at_once_and_the_second_says_what_it_waits_for():
    server = MemoryServer()
    first = Worker(a_bus(server))
    await first.begins()

    second = Worker(a_bus(server))
    await asyncio.sleep(3 * FAST.lease_s)

    assert second.began is None
    assert second.waits == ["the lease of learner"]
    assert first.waits == []
    second.stop.set()
    await second.task
    first.done.set()
    await first.task


async def test_a_standby_that_is_asked_to_stop_leaves_without_having_worked():
    server = MemoryServer()
    first, second = Worker(a_bus(server)), Worker(a_bus(server))
    await first.begins()

    second.stop.set()
    await asyncio.wait_for(second.task, LIMIT_S)

    assert second.began is None
    first.done.set()
    await first.task


async def test_a_holder_that_leaves_in_order_is_followed_without_a_wait():
    server = MemoryServer()
    slow = Timing(lease_s=60, renew_s=30, poll_s=0.02)
    first = Worker(a_bus(server), slow)
    await first.begins()
    second = Worker(a_bus(server), slow)
    await until(lambda: second.waits != [])

    left = time.monotonic()
    first.done.set()
    await first.task

    assert await second.begins() - left < 5
    second.done.set()
    await second.task
    assert (await a_bus(server).read_lease("learner"))[0] == RELEASED


async def test_a_lease_that_is_not_renewed_is_taken_over_when_it_expires_and_not_before():
    bus = a_bus()
    await bus.write_lease("learner", ELSEWHERE.encode(), expect=0)

    began = time.monotonic()
    worker = Worker(bus)

    assert FAST.lease_s <= await worker.begins() - began < FAST.lease_s + 2
    worker.done.set()
    await worker.task


async def test_a_lease_that_is_renewed_from_elsewhere_is_never_taken():
    bus = a_bus()
    revision = await bus.write_lease("learner", ELSEWHERE.encode(), expect=0)
    worker = Worker(bus)

    for _ in range(20):
        await asyncio.sleep(FAST.lease_s / 5)
        revision = await bus.write_lease("learner", ELSEWHERE.encode(), expect=revision)

    assert worker.began is None
    worker.stop.set()
    await worker.task


async def test_a_holder_whose_lease_was_taken_is_cut_off_and_leaves_the_lease_alone():
    bus = a_bus()
    worker = Worker(bus)
    await worker.begins()
    _, revision = await bus.read_lease("learner")

    await bus.write_lease("learner", ELSEWHERE.encode(), expect=revision)

    with pytest.raises(Replaced, match=r"held by learner@elsewhere:1:1, not by learner@"):
        await asyncio.wait_for(worker.task, LIMIT_S)
    assert (await bus.read_lease("learner"))[0] == ELSEWHERE.encode()


async def test_the_error_of_the_work_itself_comes_out_as_it_is_and_the_lease_is_free():
    bus = a_bus()

    async def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await hold(
            bus, "learner", fail, health=Health("learner"), stop=asyncio.Event(), timing=FAST
        )
    assert (await bus.read_lease("learner"))[0] == RELEASED


async def test_work_that_fails_where_another_took_over_was_replaced():
    bus = a_bus()

    async def fail() -> None:
        _, revision = await bus.read_lease("learner")
        await bus.write_lease("learner", ELSEWHERE.encode(), expect=revision)
        raise FileNotFoundError("tidied up")

    with pytest.raises(Replaced, match=r"held by learner@elsewhere.*tidied up"):
        await hold(
            bus, "learner", fail, health=Health("learner"), stop=asyncio.Event(), timing=FAST
        )
    assert (await bus.read_lease("learner"))[0] == ELSEWHERE.encode()


async def test_a_lease_that_the_broker_forgot_is_written_again():
    server = MemoryServer()
    bus = a_bus(server)
    worker = Worker(bus)
    await worker.begins()

    server.run("run").leases.clear()
    await until(lambda: "learner" in server.run("run").leases)

    assert not worker.task.done()
    worker.done.set()
    await worker.task


async def test_what_no_holder_of_this_version_wrote_expires():
    bus = a_bus()
    await bus.write_lease("learner", b"\x00 no json", expect=0)

    worker = Worker(bus)
    await worker.begins()

    worker.done.set()
    await worker.task


class SlowBus(MemoryBus):
    """Its broker takes longer to answer than a holder takes to renew."""

    async def read_lease(self, role: str) -> tuple[bytes | None, int]:
        await asyncio.sleep(3 * FAST.renew_s)
        return await super().read_lease(role)


async def test_time_in_which_the_broker_does_not_answer_counts_against_nobody():
    server = MemoryServer()
    await a_bus(server).write_lease("learner", ELSEWHERE.encode(), expect=0)

    worker = Worker(SlowBus(server, "run"))
    await asyncio.sleep(4 * FAST.lease_s)

    assert worker.began is None
    worker.stop.set()
    await worker.task


class FullBus(MemoryBus):
    """Its broker has no room: writing never ends."""

    def __init__(self, server: MemoryServer, run: str) -> None:
        super().__init__(server, run)
        self.room = asyncio.Event()

    async def write_lease(self, role: str, value: bytes, *, expect: int) -> int:
        await self.room.wait()
        return await super().write_lease(role, value, expect=expect)


async def test_a_standby_without_room_for_its_word_goes_on_standing_by():
    server = MemoryServer()
    bus = FullBus(server, "run")
    worker = Worker(bus)
    await asyncio.sleep(5 * FAST.renew_s)
    began = worker.began

    bus.room.set()
    await worker.begins()

    assert began is None
    worker.done.set()
    await worker.task


class ForgetfulBus(MemoryBus):
    """Stores and does not say so in time."""

    async def write_lease(self, role: str, value: bytes, *, expect: int) -> int:
        revision = await super().write_lease(role, value, expect=expect)
        if expect == 0:
            await asyncio.sleep(60)
        return revision


async def test_a_lease_whose_writing_was_not_confirmed_is_held_all_the_same():
    asked, worker = time.monotonic(), Worker(ForgetfulBus(MemoryServer(), "run"))

    assert await worker.begins() - asked < LIMIT_S

    worker.done.set()
    await worker.task


# --- who is dead ------------------------------------------------------------------------------


def test_a_process_knows_itself_as_alive():
    assert not this_process("learner").is_dead(machine=this_machine())


def test_a_process_that_ended_is_dead_even_before_its_parent_has_cleared_it_away():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    holder = replace(this_process("learner"), pid=child.pid, process_start=start_of(child.pid))
    alive = holder.is_dead(machine=this_machine())
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie now

    as_zombie = holder.is_dead(machine=this_machine())
    child.communicate()

    assert (alive, as_zombie, holder.is_dead(machine=this_machine())) == (False, True, True)


def start_of(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[19]


def test_a_process_id_that_is_used_again_does_not_count():
    me = this_process("learner")

    assert replace(me, process_start="1").is_dead(machine=this_machine())


@pytest.mark.parametrize("machine", ["", "another machine/pid:[1]"])
def test_nothing_is_known_about_processes_elsewhere(machine: str):
    """Process 1 of another container has our host's name perhaps, and is not our process 1."""
    holder = replace(this_process("learner"), machine=machine, process_start="1")

    assert not holder.is_dead(machine=this_machine())
    assert not holder.is_dead(machine="")


async def test_the_lease_of_a_dead_process_of_this_machine_is_taken_at_once():
    bus = a_bus()
    dead = replace(this_process("learner"), writer_id="learner@dead", process_start="1")
    await bus.write_lease("learner", dead.encode(), expect=0)

    worker = Worker(bus, Timing(lease_s=60, renew_s=30, poll_s=0.02))
    await worker.begins()

    with pytest.raises(Conflict):
        await bus.write_lease("learner", dead.encode(), expect=1)
    worker.done.set()
    await worker.task
