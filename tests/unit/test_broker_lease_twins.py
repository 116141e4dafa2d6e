"""A replacement whose twin comes back just in time to publish once more begins again; nobody else does."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from broker.errors import Replaced
from broker.lease import BEGIN_AGAIN, Holder, Timing, hold
from broker.memory import MemoryBus
from broker.memory_state import MemoryServer
from broker.telemetry import Health

FAST = Timing(lease_s=0.4, renew_s=0.05, poll_s=0.02)
ELSEWHERE = Holder("learner@elsewhere:1:1", "another machine/pid:[1]", 1, "1")
LIMIT_S = 10.0


def a_bus() -> MemoryBus:
    return MemoryBus(MemoryServer(), "run")


class Refused:
    """Work whose first publications are refused, as by a twin that was faster."""

    def __init__(self, times: int) -> None:
        self.begun = 0
        self._times = times

    async def __call__(self) -> None:
        self.begun += 1
        if self.begun <= self._times:
            raise Replaced("the last message is another's")


def held(bus: MemoryBus, work: Callable[[], Awaitable[None]]) -> Awaitable[None]:
    return hold(bus, "learner", work, health=Health("learner"), stop=asyncio.Event(), timing=FAST)


async def test_a_replacement_that_its_twin_outran_begins_again_and_comes_to_the_end():
    bus = a_bus()
    await bus.write_lease("learner", ELSEWHERE.encode(), expect=0)
    work = Refused(times=2)

    await asyncio.wait_for(held(bus, work), LIMIT_S)

    assert work.begun == 3


async def test_a_replacement_that_is_refused_again_and_again_gives_way():
    bus = a_bus()
    await bus.write_lease("learner", ELSEWHERE.encode(), expect=0)
    work = Refused(times=100)

    with pytest.raises(Replaced, match="another's"):
        await asyncio.wait_for(held(bus, work), LIMIT_S)

    assert work.begun == 1 + BEGIN_AGAIN


async def test_a_holder_that_took_nobodys_place_gives_way_when_it_is_refused():
    work = Refused(times=1)

    with pytest.raises(Replaced, match="another's"):
        await asyncio.wait_for(held(a_bus(), work), LIMIT_S)

    assert work.begun == 1


async def test_a_replacement_that_was_refused_leaves_when_its_lease_is_gone_too():
    bus = a_bus()
    await bus.write_lease("learner", ELSEWHERE.encode(), expect=0)
    begun: list[int] = []

    async def lose() -> None:
        begun.append(1)
        _, revision = await bus.read_lease("learner")
        await bus.write_lease("learner", ELSEWHERE.encode(), expect=revision)
        raise Replaced("the last message is another's")

    with pytest.raises(Replaced):
        await asyncio.wait_for(held(bus, lose), LIMIT_S)

    assert begun == [1]
    assert (await bus.read_lease("learner"))[0] == ELSEWHERE.encode()


async def test_a_lease_that_the_broker_forgot_is_lost_to_nobody():
    bus = a_bus()
    await bus.write_lease("learner", ELSEWHERE.encode(), expect=0)
    begun: list[int] = []

    async def refused_once() -> None:
        begun.append(1)
        if len(begun) == 1:
            bus._state.leases.clear()
            raise Replaced("the last message is another's")

    await asyncio.wait_for(held(bus, refused_once), LIMIT_S)

    assert len(begun) == 2
