"""What a process leaves in the object store when it dies in the middle is deleted, and nothing else."""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator

import pytest

from broker import jetstream
from broker.jetbus import JetStreamBus
from broker.packing import objects_prefix
from broker.settings import NatsSettings
from broker.streams import object_stream
from broker.topology import H_OBJECT, Log
from broker.wire import api
from tests.contract.logs import a_large_request, group_id
from workers.dispatcher import orphans
from workers.dispatcher.orphans import Orphans

MIB = 1 << 20


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[JetStreamBus]:
    # Messages above 128 KiB leave their bodies in the object store.
    settings = NatsSettings(url=nats_url, log_bytes=MIB)
    opened = await jetstream.connect(settings, f"t{uuid.uuid4().hex[:12]}")
    await opened.ensure_logs(settings)
    yield opened
    await opened.delete_run()
    await opened.close()


async def stored(bus: JetStreamBus) -> tuple[int, int]:
    """Subjects and bytes of the bucket."""
    state = (await api(bus._wire, f"STREAM.INFO.{object_stream(bus.run)}"))["state"]
    return state["num_subjects"], state["bytes"]


async def cut_short(bus: JetStreamBus, *, at_bytes: int) -> None:
    """A put that ends when so much of it is stored."""
    before = (await stored(bus))[1]
    putting = asyncio.create_task(bus.put_object("cut", os.urandom(16 * MIB)))
    async with asyncio.timeout(20):
        while (await stored(bus))[1] < before + at_bytes:
            pass  # asking the server gives the put its turns
    putting.cancel()
    await asyncio.gather(putting, return_exceptions=True)


async def test_parts_of_an_object_that_was_cut_short_go_when_they_are_old(bus: JetStreamBus):
    await bus.put_object("whole", b"1" * 3 * MIB)
    subjects, _ = await stored(bus)
    await cut_short(bus, at_bytes=2 * MIB)
    assert await bus.list_objects("") == ["whole"]

    young = await bus.delete_unfinished_objects(3600)
    with_parts = (await stored(bus))[0]
    old = await bus.delete_unfinished_objects(0)

    assert (young, with_parts, old) == (0, subjects + 1, 1)
    assert (await stored(bus))[0] == subjects
    assert await bus.get_object("whole", wait_s=10) == b"1" * 3 * MIB


async def test_a_body_goes_only_when_no_message_has_named_it_for_long(
    bus: JetStreamBus, monkeypatch: pytest.MonkeyPatch
):
    for number in (1, 2):
        await bus.publish(a_large_request(number), expect_subject=0)
    first = await bus.get(Log.REQUESTS, 1)
    assert first is not None
    named = set(await bus.list_objects("groups/"))
    orphan = f"{objects_prefix(Log.REQUESTS)}{'0' * 64}"
    elsewhere = f"{objects_prefix(Log.GENERATED)}{'0' * 64}"
    for name in (orphan, elsewhere, "weights/000001-x", "snapshots/policy-x"):
        await bus.put_object(name, b"x")
    sweeper = Orphans(bus)

    assert await sweeper.sweep() == 0
    monkeypatch.setattr(orphans, "AGE_S", 0.0)
    assert await sweeper.sweep() == 2

    kept = {"weights/000001-x", "snapshots/policy-x"}
    assert set(await bus.list_objects("")) == named | kept
    assert first.headers[H_OBJECT] in named
    assert first.event().group.group_id == group_id(1)  # type: ignore[union-attr]


async def test_while_somebody_may_wait_for_space_nothing_is_suspected(
    bus: JetStreamBus, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(orphans, "INTERVAL_S", 0.0)
    orphan = f"{objects_prefix(Log.REQUESTS)}{'0' * 64}"
    await bus.put_object(orphan, b"x")
    sweeper = Orphans(bus)
    await sweeper.sweep_now_and_then(tight=False)
    suspected = dict(sweeper._suspected)

    await sweeper.sweep_now_and_then(tight=True)

    assert list(suspected) == [orphan]
    assert sweeper._suspected == {}
    assert await bus.list_objects("groups/") == [orphan]
