"""What only a real server shows: settings read back, refusals, payload limits, its own directory."""

import asyncio
import json
import socket
import struct
import time
import uuid
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker import embedded, jetstream
from broker.arrays import Array
from broker.errors import BadConfiguration, Unreachable
from broker.jetbus import MARGIN_BYTES, JetStreamBus
from broker.jetstream import shown_url
from broker.packing import pack
from broker.settings import NatsSettings
from broker.streams import check_same, object_stream
from broker.telemetry import Health
from broker.topology import H_OBJECT, ROLLOUT_TRAIN, Log, Reader
from broker.wire import api
from tests.builders import a_request
from tests.integration.conftest import Start


def a_fresh_id() -> str:
    return f"g{uuid.uuid4().hex}"


async def test_many_processes_may_make_the_logs_at_once(nats_url: str):
    settings = NatsSettings(url=nats_url)
    run = f"t{uuid.uuid4().hex[:12]}"
    buses = [await jetstream.connect(settings, run) for _ in range(5)]

    await asyncio.gather(*(bus.ensure_logs(settings) for bus in buses))

    assert run in await jetstream.list_runs(settings)
    await buses[0].delete_run()
    assert run not in await jetstream.list_runs(settings)
    for bus in buses:
        await bus.close()


async def test_a_log_with_another_quota_is_refused_by_name(bus: JetStreamBus, nats_url: str):
    other = NatsSettings(url=nats_url, log_bytes=5 << 20)

    with pytest.raises(BadConfiguration) as caught:
        await bus.ensure_logs(other)

    assert f"{bus.run}_REQUESTS: max_bytes is {1 << 30}; expected {5 << 20}" in str(caught.value)


async def test_a_reader_with_another_ack_wait_is_refused_by_name(bus: JetStreamBus, nats_url: str):
    other = Reader(ROLLOUT_TRAIN.name, Log.REQUESTS, ("train",), ack_wait_s=5)

    with pytest.raises(BadConfiguration, match=r"rollout: ack_wait is 30000000000; expected 5000"):
        await bus.ensure_logs(NatsSettings(url=nats_url), (other,))


def test_a_server_too_old_for_batches_is_told_from_the_settings_it_ignored():
    with pytest.raises(BadConfiguration, match=r"allow_atomic is False; expected True.*2\.12"):
        check_same("stream x", {"allow_atomic": True}, {"name": "x"})


async def test_a_quota_larger_than_the_disk_is_refused_before_the_run_starts(nats_url: str):
    settings = NatsSettings(url=nats_url, log_bytes=1 << 50)
    bus = await jetstream.connect(settings, f"t{uuid.uuid4().hex[:12]}")

    with pytest.raises(BadConfiguration, match=r"nats\.log_bytes"):
        await bus.ensure_logs(settings)

    await bus.close()


async def test_publishing_to_a_deleted_run_ends(bus: JetStreamBus):
    await bus.delete_run()

    with pytest.raises(Unreachable, match="does not exist"):
        await bus.publish(a_request())


async def test_a_server_that_is_not_there_is_named_without_the_password():
    port = embedded._free_port()
    settings = NatsSettings(url=f"nats://me:secret@127.0.0.1:{port}", connect_wait_s=0.5)
    started = time.monotonic()

    with pytest.raises(Unreachable) as caught:
        await jetstream.connect(settings, "run")

    assert time.monotonic() - started < 5
    assert f"nats://127.0.0.1:{port}" in str(caught.value)
    assert "secret" not in str(caught.value)


async def test_a_wrong_password_is_refused_at_once(nats_url: str):
    url = f"nats://sluice:wrong@{nats_url.rpartition('@')[2]}"
    wrong = NatsSettings(url=url, connect_wait_s=60)
    started = time.monotonic()

    with pytest.raises(Unreachable, match=r"refused .*(?i:authorization)"):
        await jetstream.connect(wrong, "run")

    assert time.monotonic() - started < 30, "not after the wait for a server that is away"


async def test_a_refusal_is_named_although_the_server_hangs_up_after_it():
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        info = {"server_id": "s", "version": "2.11.0", "max_payload": 1 << 20}
        writer.write(b"INFO " + json.dumps(info).encode() + b"\r\n")
        await reader.readuntil(b"PING\r\n")
        writer.write(b"-ERR 'Authorization Violation'\r\n")
        await writer.drain()
        reset = struct.pack("ii", 1, 0)  # closing sends a reset
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        settings = NatsSettings(url=f"nats://me:wrong@127.0.0.1:{port}", connect_wait_s=30)

        with pytest.raises(Unreachable, match=r"refused .*Authorization Violation"):
            await jetstream.connect(settings, "run")


@pytest.mark.parametrize("url", ["", "nats://", "http://x:y", "nats://host:port"])
async def test_a_url_that_is_none_is_refused_with_what_is_expected(url: str):
    with pytest.raises(BadConfiguration, match=r"nats\.url.*expected nats://HOST:PORT"):
        await jetstream.connect(NatsSettings(url=url, connect_wait_s=0.5), "run")


def test_the_shown_url_holds_no_credentials():
    assert shown_url(NatsSettings(url="nats://a:b@h")) == "nats://h:4222"


# --- payload limit ----------------------------------------------------------------------------


def a_request_packed_as(bus: JetStreamBus, size: int):
    """A request whose packed size, headers included, is exactly `size`."""

    def of(data_bytes: int):
        data = Array(dtype="|u1", shape=(data_bytes,), data=b"\1" * data_bytes)
        return a_request(a_fresh_id(), prompt_ids=data)

    base = pack(bus.run, of(100_000)).size - 100_000
    event = of(size - base)
    missing = size - pack(bus.run, event).size
    return event if missing == 0 else of(size - base + missing)


async def test_messages_around_the_payload_limit_are_stored_and_the_client_lives(
    bus: JetStreamBus,
):
    limit = NatsSettings().max_payload_bytes - MARGIN_BYTES

    for size in (limit - 1, limit, limit + 1, limit + MARGIN_BYTES, limit + 2 * MARGIN_BYTES):
        event = a_request_packed_as(bus, size)
        sequence = await bus.publish(event, expect_subject=0)
        batched = a_request_packed_as(bus, size)
        await bus.publish_batch([batched])

        for number, expected in ((sequence, event), (sequence + 1, batched)):
            stored = await bus.get(Log.REQUESTS, number)
            assert stored is not None
            assert stored.event() == expected
            assert (H_OBJECT in stored.headers) == (size > limit)


async def test_a_dead_letter_of_the_largest_message_fits(bus: JetStreamBus):
    event = a_request_packed_as(bus, NatsSettings().max_payload_bytes - MARGIN_BYTES)
    stored = await bus.get(Log.REQUESTS, await bus.publish(event))
    assert stored is not None

    await bus.dead_letter(stored, "x" * 5000)

    assert (await bus.state(Log.DEAD)).messages == 1


async def test_a_cursor_reads_messages_of_the_largest_size(bus: JetStreamBus):
    size = NatsSettings().max_payload_bytes - MARGIN_BYTES
    for _ in range(8):
        await bus.publish(a_request_packed_as(bus, size))

    cursor = await bus.cursor(Log.REQUESTS, 0)
    found: list[int] = []
    async with asyncio.timeout(30):
        while len(found) < 8:
            found += [stored.sequence for stored in await cursor.read(100, 1.0)]
    await cursor.close()

    assert found == list(range(1, 9))


async def test_a_cursor_that_is_not_read_holds_a_bounded_amount(bus: JetStreamBus):
    data = np.random.default_rng(0).bytes(1 << 20)
    for n in range(120):
        ids = Array(dtype="|u1", shape=(1 << 20,), data=data)
        await bus.publish(a_request(f"{n:08d}-0-0", prompt_ids=ids))
    cursor = await bus.cursor(Log.REQUESTS, 0)
    await cursor.read(1, 5.0)
    await asyncio.sleep(1.0)
    await cursor.read(1, 5.0)

    assert cursor.buffered_bytes < 64 << 20

    found = 2
    async with asyncio.timeout(30):
        while found < 120:
            found += len(await cursor.read(50, 1.0))
    assert cursor.position == 120


# --- a full store -----------------------------------------------------------------------------


async def test_a_full_store_makes_all_publishers_wait_until_space_is_made(
    start: Start, tmp_path: Path
):
    server = start(tmp_path / "n", store_bytes=16 << 20)
    settings = NatsSettings(url=server.url, log_bytes=1 << 20)
    health = Health("publisher")
    bus = await jetstream.connect(settings, "run", health=health)
    await bus.ensure_logs(settings)
    had_room = await bus.has_room()
    await bus.put_object("a", b"1" * (15 << 20))

    ids = Array(dtype="|u1", shape=(90_000,), data=b"\0" * 90_000)
    big = asyncio.create_task(bus.put_object("b", b"2" * (4 << 20)))
    many = [
        asyncio.create_task(bus.publish(a_request(f"{n:08d}-0-0", prompt_ids=ids)))
        for n in range(10)
    ]
    await asyncio.sleep(1.5)
    waits = str(health.status()["waits"])
    done = [task.done() for task in (big, *many)]
    has_room = await bus.has_room()
    await bus.delete_object("a")
    async with asyncio.timeout(20):
        await asyncio.gather(big, *many)

    assert (had_room, has_room) == (True, False)
    assert not done[0]
    assert not all(done[1:])
    assert "space in OBJECTS" in waits
    assert "space in REQUESTS" in waits
    assert await bus.get_object("b", wait_s=10) == b"2" * (4 << 20)
    assert (await bus.state(Log.REQUESTS)).messages == 10
    await bus.close()


async def test_a_damaged_object_counts_as_none_after_its_limit(bus: JetStreamBus):
    await bus.put_object("a", b"1" * 2_000_000)
    state = await api(bus._wire, f"STREAM.INFO.{object_stream(bus.run)}")
    await api(
        bus._wire,
        f"STREAM.MSG.DELETE.{object_stream(bus.run)}",
        {"seq": state["state"]["first_seq"] + 1},
    )

    assert await bus.get_object("a", wait_s=0.5) is None


# --- cursors against a hostile server ----------------------------------------------------------


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from(["read", "publish", "forget"]), min_size=10, max_size=30))
async def test_a_cursor_whose_consumer_vanishes_at_any_time_skips_nothing(
    bus: JetStreamBus, actions: list[str]
):
    before = (await bus.state(Log.REQUESTS)).last
    cursor = await bus.cursor(Log.REQUESTS, before)
    found: list[int] = []
    published = before
    for action in [*actions, "publish"]:
        if action == "publish":
            published = await bus.publish(a_request(a_fresh_id()))
        elif action == "read":
            found += [stored.sequence for stored in await cursor.read(2, 0.05)]
        else:
            await cursor.forget_consumer()

    async with asyncio.timeout(20):
        while not found or found[-1] < published:
            found += [stored.sequence for stored in await cursor.read(100, 0.5)]
    await cursor.close()
    assert found == list(range(before + 1, published + 1))
