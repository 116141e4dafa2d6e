"""Messages too large for one publication travel through the object store, and leave nothing there."""

import pytest

from broker.errors import Conflict, Poison
from broker.topology import H_OBJECT, Log
from tests.builders import a_request
from tests.contract.conftest import Place
from tests.contract.logs import a_large_request, group_id, read_all


async def test_a_large_message_travels_through_the_object_store(place: Place):
    bus = await place.bus(log_bytes=1 << 20)
    event = a_large_request()

    sequence = await bus.publish(event, expect_subject=0)

    (read,) = await read_all(bus, Log.REQUESTS, 1)
    got = await bus.get(Log.REQUESTS, sequence)
    assert read.event() == event
    assert got is not None
    assert got.event() == event
    assert read.headers[H_OBJECT].startswith("groups/REQUESTS/")
    assert await bus.list_objects("groups/") == [read.headers[H_OBJECT]]
    assert (await bus.state(Log.REQUESTS)).bytes < 10_000


async def test_a_large_message_read_headers_only_is_not_fetched(place: Place):
    bus = await place.bus(log_bytes=1 << 20)
    await bus.publish(a_large_request())
    await bus.delete_object((await bus.list_objects("groups/"))[0])

    (stored,) = await read_all(bus, Log.REQUESTS, 1, headers_only=True)

    assert stored.data == b""


async def test_a_large_message_whose_object_is_gone_is_poison_not_a_hang(place: Place):
    bus = await place.bus(log_bytes=1 << 20)
    await bus.publish(a_large_request())
    await bus.delete_object((await bus.list_objects("groups/"))[0])

    (stored,) = await read_all(bus, Log.REQUESTS, 1)

    with pytest.raises(Poison):
        stored.event()


async def test_large_messages_are_compared_and_conflict_like_small_ones(place: Place):
    bus = await place.bus(log_bytes=1 << 20)
    first = await bus.publish(a_large_request(1), expect_subject=0)

    again = await bus.publish(a_large_request(1), expect_subject=0)
    with pytest.raises(Conflict):
        await bus.publish(
            a_large_request(2).model_copy(update={"group": a_request().group}), expect_subject=0
        )

    assert first == again
    assert len(await bus.list_objects("groups/")) == 1  # the refused body is not left behind


async def test_a_batch_may_hold_large_messages(place: Place):
    bus = await place.bus(log_bytes=1 << 20)
    batch = [a_request(group_id(1)), a_large_request(2), a_request(group_id(3))]

    await bus.publish_batch(batch)

    assert [s.event() for s in await read_all(bus, Log.REQUESTS, 3)] == batch


async def test_purging_deletes_the_objects_of_purged_messages_only(place: Place):
    bus = await place.bus(log_bytes=1 << 20)
    for n in range(1, 5):
        await bus.publish(a_large_request(n))

    await bus.purge(Log.REQUESTS, 2)

    kept = {s.headers[H_OBJECT] for s in await read_all(bus, Log.REQUESTS, 2)}
    assert set(await bus.list_objects("groups/")) == kept
