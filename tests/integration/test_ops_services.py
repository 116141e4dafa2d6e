"""Embedded servers of one machine: started, shared by processes, mended, and left as they were found."""

import asyncio
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker import jetstream
from broker.errors import BadConfiguration
from broker.settings import NatsSettings
from broker.topology import Log
from ops.asking import request_stop
from ops.commands.common import bus_of
from ops.paths import RunPaths
from ops.services import Services, is_alive, running
from store import database, schema

SETTINGS = NatsSettings(sync_interval="2m", log_bytes=16 * 1024 * 1024)

CONFIG = """
run = {name = "shared", steps = 1, groups_per_step = 1, group_size = 2}
[model.tiny]
characters = "ab"
[[source]]
domain = "words"
generator = "ordering"
[nats]
sync_interval = "2m"
log_bytes = 16_777_216
"""


def services(folder: Path, settings: NatsSettings = SETTINGS) -> Services:
    return Services(folder, settings, None)


async def publish(url: str) -> int:
    bus = await jetstream.connect(SETTINGS.model_copy(update={"url": url}), "r1")
    try:
        await bus.ensure_logs(SETTINGS)
        await request_stop(bus, "test")
        return (await bus.state(Log.LEDGER)).last
    finally:
        await bus.close()


def until(true: Callable[[], bool], limit_s: float = 30.0) -> None:
    """Blocks; await it in a thread."""
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, f"not within {limit_s} s"
        time.sleep(0.05)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not under pytest's own, which it closes to the user that Postgres runs as when we are root."""
    with tempfile.TemporaryDirectory(prefix="sluice-services-") as path:
        yield Path(path)


async def test_what_one_process_stored_the_next_one_finds(folder: Path):
    first = services(folder)
    sequence = await publish(await first.open_nats())
    schema.upgrade(await first.open_postgres())
    pids = first.pids()
    await first.close()

    second = services(folder)
    again = await publish(await second.open_nats())
    state = schema.check(await second.open_postgres())
    await second.close()

    assert again == sequence + 1
    assert state.relation == "current"
    assert not any(
        is_alive(pid) for found in (pids, second.pids()) for ids in found.values() for pid in ids
    )


async def test_a_second_user_shares_the_servers_and_inherits_them(folder: Path):
    owner, guest = services(folder), services(folder)
    url = await owner.open_nats()
    await owner.open_postgres()

    assert await guest.open_nats() == url
    store = await guest.open_postgres()
    assert guest.pids() == owner.pids()

    async with guest.watched():
        await owner.close()
        await asyncio.to_thread(until, lambda: running(folder / "nats") is not None)
        await publish(url)
        with database.connect(store) as connection:
            connection.execute("SELECT 1")
    await guest.close()
    assert running(folder / "nats") is None


async def test_servers_that_are_killed_come_back_at_the_same_address(folder: Path):
    owner = services(folder)
    url = await owner.open_nats()
    sequence = await publish(url)
    store = await owner.open_postgres()
    before = owner.pids()
    async with owner.watched():
        for (pid,) in before.values():
            os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(
            until,
            lambda: all(owner.pids().get(name, pids) != pids for name, pids in before.items()),
        )

        assert await publish(url) == sequence + 1
        with database.connect(store, wait_s=10) as connection:
            connection.execute("SELECT 1")
    await owner.close()


async def test_what_is_asked_of_a_run_is_answered_though_the_servers_owner_leaves(folder: Path):
    """As a run that still proves itself when the other one of its folder has finished."""
    owner, run = services(folder / ".services"), RunPaths(folder / "r1")
    sequence = await publish(await owner.open_nats())
    run.make()
    run.config.write_text(CONFIG)

    async with bus_of(folder, run) as bus:
        await owner.close()
        state = await bus.state(Log.LEDGER)

    assert state.last == sequence
    assert running(folder / ".services" / "nats") is None


async def test_a_start_under_way_is_not_left_behind_when_watching_ends(folder: Path):
    owner, guest = services(folder), services(folder)
    await owner.open_nats()
    await guest.open_nats()

    endpoint, before = folder / "nats" / "endpoint.json", owner.pids()["nats"]

    async def fail_while_it_starts() -> None:
        async with guest.watched():
            await owner.close()
            await asyncio.to_thread(
                until, lambda: json.loads(endpoint.read_text())["pid"] not in before
            )
            raise ValueError("meanwhile")

    with pytest.raises(ValueError, match="meanwhile"):
        await fail_while_it_starts()
    await guest.close()

    assert running(folder / "nats") is None


async def test_a_server_with_other_settings_is_not_shared(folder: Path):
    owner = services(folder)
    await owner.open_nats()
    try:
        guest = services(folder, SETTINGS.model_copy(update={"sync_interval": "always"}))
        with pytest.raises(BadConfiguration, match=r"nats\.sync_interval 'always'.*'2m'"):
            await guest.open_nats()
    finally:
        await owner.close()


async def test_urls_of_the_configuration_are_used_as_they_are(folder: Path):
    named = Services(folder, NatsSettings(url="nats://elsewhere"), "postgresql://elsewhere/db")

    assert await named.open_nats() == "nats://elsewhere"
    assert await named.open_postgres() == "postgresql://elsewhere/db"
    assert named.pids() == {}
    await named.close()
    assert os.listdir(folder) == []
