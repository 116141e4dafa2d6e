"""A broker that comes back without its newest messages is told by every reader that had read them."""

import asyncio
import os
import shutil
import signal
from pathlib import Path

import pytest

from broker import jetstream
from broker.bus import Cursor
from broker.errors import LogLost
from broker.jetbus import JetStreamBus
from broker.settings import NatsSettings
from broker.topology import Log
from tests.builders import a_request
from tests.integration.conftest import Start

LIMIT_S = 20.0


async def fill(bus: JetStreamBus, first: int, last: int) -> None:
    for n in range(first, last + 1):
        await bus.publish(a_request(f"{n:08d}-0-0"), expect_subject=0)


async def until_read(cursor: Cursor) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not await cursor.read(9, 1.0):
            pass


@pytest.mark.parametrize("since", [0, 3], ids=["nothing came since", "others wrote since"])
async def test_a_reader_ahead_of_its_log_says_so_instead_of_waiting_or_skipping(
    since: int, start: Start, tmp_path: Path
):
    server = start(tmp_path / "n", sync_interval="2m")
    settings = NatsSettings(url=server.url)
    bus, other = [await jetstream.connect(settings, "run") for _ in range(2)]
    await bus.ensure_logs(settings)
    await fill(bus, 1, 4)
    os.kill(server.pid, signal.SIGKILL)
    await asyncio.to_thread(shutil.copytree, tmp_path / "n" / "jetstream", tmp_path / "disk")
    await asyncio.to_thread(server.restart)
    await fill(bus, 5, 9)
    cursor, late = await bus.cursor(Log.REQUESTS, 0), await bus.cursor(Log.REQUESTS, 9)
    found = []
    while len(found) < 9:
        found += await cursor.read(9, 5.0)

    # What a power cut leaves of messages that were acknowledged before they were on disk.
    os.kill(server.pid, signal.SIGKILL)
    await asyncio.to_thread(shutil.rmtree, tmp_path / "n" / "jetstream")
    await asyncio.to_thread(shutil.copytree, tmp_path / "disk", tmp_path / "n" / "jetstream")
    await asyncio.to_thread(server.restart)
    await fill(other, 5, 4 + since)

    last = 4 + since
    for reader in (cursor, late):
        with pytest.raises(LogLost, match=f"run_REQUESTS ends at {last}, and was read to 9"):
            await until_read(reader)
    for one in (bus, other):
        await one.close()
