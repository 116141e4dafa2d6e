"""The object store of a run, in memory and on JetStream alike."""

import asyncio
import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from broker import weights
from broker.bus import Bus
from broker.errors import TooLong
from broker.messages import WeightsPublished
from tests.builders import AT_US, WRITER


def some_bytes(seed: int, size: int = 1_500_000) -> bytes:
    return np.random.default_rng(seed).bytes(size)


@pytest.mark.parametrize("size", [0, 1, 524_288, 524_289, 3_000_000])
async def test_an_object_is_read_as_it_was_put(bus: Bus, size: int):
    data = some_bytes(1, size)

    await bus.put_object("weights/000001-abc", data)

    assert await bus.get_object("weights/000001-abc", wait_s=10) == data


async def test_an_absent_object_is_none_at_once(bus: Bus):
    async with asyncio.timeout(2):
        assert await bus.get_object("nothing", wait_s=60) is None


async def test_putting_again_replaces(bus: Bus):
    await bus.put_object("a/b", some_bytes(1))
    await bus.put_object("a/b", some_bytes(2))

    assert await bus.get_object("a/b", wait_s=10) == some_bytes(2)


async def test_objects_are_listed_by_prefix(bus: Bus):
    for name in ("weights/2", "weights/1", "groups/X/é ö", "other"):
        await bus.put_object(name, name.encode())

    assert await bus.list_objects("weights/") == ["weights/1", "weights/2"]
    assert await bus.list_objects("groups/X/é") == ["groups/X/é ö"]
    assert len(await bus.list_objects("")) == 4


async def test_a_deleted_object_is_gone_and_can_be_put_again(bus: Bus):
    await bus.put_object("a", b"1")
    await bus.delete_object("a")
    await bus.delete_object("a")

    gone = await bus.get_object("a", wait_s=10)
    await bus.put_object("a", b"2")

    assert gone is None
    assert await bus.get_object("a", wait_s=10) == b"2"
    assert await bus.list_objects("") == ["a"]


async def test_two_large_puts_at_once_do_not_mix(bus: Bus):
    names = [f"n{n}" for n in range(3)]

    await asyncio.gather(*(bus.put_object(n, some_bytes(i)) for i, n in enumerate(names)))

    for number, name in enumerate(names):
        assert await bus.get_object(name, wait_s=10) == some_bytes(number)


async def test_two_writers_of_one_name_leave_one_of_their_objects_whole(bus: Bus):
    await asyncio.gather(*(bus.put_object("same", some_bytes(n)) for n in range(3)))

    assert await bus.get_object("same", wait_s=10) in [some_bytes(n) for n in range(3)]


async def test_reading_while_it_is_deleted_never_hangs(bus: Bus):
    data = some_bytes(1, 4_000_000)
    for _ in range(5):
        await bus.put_object("busy", data)

        readers = [asyncio.create_task(bus.get_object("busy", wait_s=5)) for _ in range(4)]
        await asyncio.sleep(0.005)
        await bus.delete_object("busy")

        async with asyncio.timeout(10):
            assert set(await asyncio.gather(*readers)) <= {data, None}


# --- model weights ----------------------------------------------------------------------------


def published(data: bytes, uri: str) -> WeightsPublished:
    digest = hashlib.sha256(data).hexdigest()
    return WeightsPublished(
        writer_id=WRITER, at_us=AT_US, version=3, step=3, digest=digest, uri=uri, bytes=len(data)
    )


@pytest.mark.parametrize("kind", ["object", "directory"])
async def test_published_weights_are_fetched_by_digest(
    bus: Bus, tmp_path: Path, kind: weights.Kind
):
    data = some_bytes(1)
    digest = hashlib.sha256(data).hexdigest()

    uri = await weights.publish(bus, kind, tmp_path / "w", 3, digest, data)
    path = await weights.fetch(bus, published(data, uri), tmp_path / "cache", 10)

    assert path.read_bytes() == data
    assert [name for name in os.listdir(path.parent) if name.endswith(".part")] == []


@pytest.mark.parametrize("kind", ["object", "directory"])
async def test_weights_with_another_digest_are_never_handed_out(
    bus: Bus, tmp_path: Path, kind: weights.Kind
):
    uri = await weights.publish(bus, kind, tmp_path / "w", 3, "0" * 64, b"damaged")

    with pytest.raises(TooLong, match="digest differs"):
        await weights.fetch(bus, published(b"whole", uri), tmp_path / "cache", 0.7)


async def test_weights_that_come_late_are_waited_for(bus: Bus, tmp_path: Path):
    data = some_bytes(1)
    digest = hashlib.sha256(data).hexdigest()
    uri = f"object:weights/{weights.file_name(3, digest)}"
    fetching = asyncio.create_task(weights.fetch(bus, published(data, uri), tmp_path, 10))
    await asyncio.sleep(0.2)

    assert await weights.publish(bus, "object", tmp_path, 3, digest, data) == uri

    assert (await fetching).read_bytes() == data


@pytest.mark.parametrize("kind", ["object", "directory"])
async def test_deleted_weights_are_gone_and_waiting_for_them_ends(
    bus: Bus, tmp_path: Path, kind: weights.Kind
):
    data = some_bytes(1)
    digest = hashlib.sha256(data).hexdigest()
    uri = await weights.publish(bus, kind, tmp_path / "w", 3, digest, data)

    await weights.delete(bus, uri)
    await weights.delete(bus, uri)

    with pytest.raises(TooLong, match="not there"):
        await weights.fetch(bus, published(data, uri), tmp_path / "cache", 0.6)


async def test_an_unknown_kind_of_uri_is_named(bus: Bus, tmp_path: Path):
    with pytest.raises(ValueError, match="s3://x"):
        await weights.fetch(bus, published(b"", "s3://x"), tmp_path, 1)
