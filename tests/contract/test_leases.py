"""A lease is one value per role, replaced by compare-and-set, in memory and on JetStream alike."""

import asyncio

import pytest

from broker.bus import Bus
from broker.errors import Conflict
from broker.topology import Log
from tests.contract.conftest import Place


async def test_a_lease_that_was_never_written_has_revision_0(bus: Bus):
    assert await bus.read_lease("learner") == (None, 0)


async def test_only_the_newest_value_is_kept_and_its_revision_grows(bus: Bus):
    first = await bus.write_lease("learner", b"a", expect=0)
    second = await bus.write_lease("learner", b"b", expect=first)

    assert second > first > 0
    assert await bus.read_lease("learner") == (b"b", second)


async def test_a_lease_can_be_written_again_with_the_same_value_and_with_none(bus: Bus):
    revision = 0
    for value in (b"a", b"a", b"", b""):
        before = revision
        revision = await bus.write_lease("learner", value, expect=revision)
        assert revision > before

    assert await bus.read_lease("learner") == (b"", revision)


@pytest.mark.parametrize("expect", [0, 1000])
async def test_a_write_that_expects_another_revision_is_refused(bus: Bus, expect: int):
    revision = await bus.write_lease("learner", b"a", expect=0)

    with pytest.raises(Conflict, match="learner"):
        await bus.write_lease("learner", b"b", expect=expect)

    assert await bus.read_lease("learner") == (b"a", revision)


async def test_a_refused_write_of_what_is_there_counts_as_stored(bus: Bus):
    revision = await bus.write_lease("learner", b"a", expect=0)

    assert await bus.write_lease("learner", b"a", expect=0) == revision


async def test_of_writers_at_once_one_gets_the_lease(place: Place):
    buses = [await place.bus() for _ in range(4)]

    results = await asyncio.gather(
        *(bus.write_lease("policy", b"%d" % n, expect=0) for n, bus in enumerate(buses)),
        return_exceptions=True,
    )

    (winner,) = [n for n, found in enumerate(results) if not isinstance(found, BaseException)]
    assert sum(isinstance(found, Conflict) for found in results) == 3
    assert await buses[0].read_lease("policy") == (b"%d" % winner, results[winner])


async def test_leases_of_roles_are_apart_and_leave_no_message_in_a_log(bus: Bus):
    learner = await bus.write_lease("learner", b"a", expect=0)
    policy = await bus.write_lease("policy", b"b", expect=0)

    assert await bus.read_lease("learner") == (b"a", learner)
    assert await bus.read_lease("policy") == (b"b", policy)
    assert {log: (await bus.state(log)).last for log in Log} == dict.fromkeys(Log, 0)
