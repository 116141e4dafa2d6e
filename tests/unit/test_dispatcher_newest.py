"""Requests that cannot be read: passed over, unless the draws would begin anew."""

import pytest

from broker.errors import SluiceError
from broker.memory import MemoryBus
from broker.memory_state import MemoryServer
from broker.messages import GroupRequested, MixtureCounters
from broker.telemetry import Health
from tests.builders import a_key, a_request
from workers.dispatcher import newest
from workers.dispatcher.following import catch_up
from workers.dispatcher.newest import newest_train_request
from workers.dispatcher.state import State


def a_draw(request_seq: int, draw: int, *, attempt: int = 0, drawn: int) -> GroupRequested:
    """drawn: how far the sources are with it."""
    counts = {"math": drawn}
    counters = MixtureCounters(
        update_no=0, target={"math": 1.0}, owed={}, requested=counts, positions=counts
    )
    key = a_key(f"{draw:08d}-0-{attempt}", request_seq=request_seq)
    return a_request(group=key, draw=draw, attempt=attempt, mixture=counters)


def unreadable(request: GroupRequested) -> GroupRequested:
    """As a newer version would write it."""
    return type("Newer", (GroupRequested,), {"SCHEMA": 99}).model_construct(**dict(request))


async def caught_up(*requests: GroupRequested) -> State:
    bus, state = MemoryBus(MemoryServer(), "r"), State(max_attempts=3)
    for request in requests:
        await bus.publish(request)
    followers = await catch_up(bus, state, Health("dispatcher"))
    await followers.close()
    return state


async def test_an_unreadable_request_after_which_nothing_was_drawn_is_passed_over():
    retried = unreadable(a_draw(3, 1, attempt=1, drawn=2))

    state = await caught_up(a_draw(1, 1, drawn=1), a_draw(2, 2, drawn=2), retried)

    assert state.counters is not None
    assert state.counters.positions == {"math": 2}


@pytest.mark.parametrize("readable", [0, 1])
async def test_with_the_counters_of_the_last_draw_unreadable_nothing_is_drawn_again(readable: int):
    requests = [a_draw(number, number, drawn=number) for number in (1, 2)]
    requests[readable:] = [unreadable(request) for request in requests[readable:]]

    with pytest.raises(SluiceError, match=f"holds draw 2, .* knows of {readable}"):
        await caught_up(*requests)


async def test_a_stranger_s_number_far_ahead_keeps_no_dispatcher_from_starting():
    strange = unreadable(a_draw(3, 99_999_999, drawn=99_999_999))

    state = await caught_up(a_draw(1, 1, drawn=1), a_draw(2, 2, drawn=2), strange)

    assert state.counters is not None
    assert state.counters.positions == {"math": 2}


async def test_the_search_for_a_request_that_can_be_read_has_an_end(
    monkeypatch: pytest.MonkeyPatch,
):
    bus = MemoryBus(MemoryServer(), "r")
    requests = [a_draw(1, 1, drawn=1), *(a_draw(n, n, drawn=n) for n in (2, 3, 4))]
    for request in (requests[0], *map(unreadable, requests[1:])):
        await bus.publish(request)

    found = []
    for limit in (3, 4):
        monkeypatch.setattr(newest, "SEARCH_LIMIT", limit)
        found.append(await newest_train_request(bus))

    assert found == [None, requests[0]]
