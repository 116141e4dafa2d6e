"""The same tests on both buses: `place` opens buses of one run, in memory or on a NATS server."""

import uuid
from collections.abc import AsyncIterator, Sequence

import pytest

from broker import jetstream
from broker.bus import Bus
from broker.jetbus import JetStreamBus
from broker.memory import MemoryBus, MemoryServer
from broker.settings import NatsSettings
from broker.telemetry import Health
from broker.topology import READERS, Reader


class MemoryPlace:
    """Buses of one run on one memory server."""

    def __init__(self) -> None:
        self._servers: dict[int, MemoryServer] = {}

    async def bus(
        self,
        *,
        log_bytes: int = 64 << 20,
        readers: Sequence[Reader] = READERS,
        health: Health | None = None,
    ) -> Bus:
        server = self._servers.setdefault(log_bytes, MemoryServer(log_bytes=log_bytes))
        return MemoryBus(server, "run", health=health)

    async def close(self) -> None:
        self._servers.clear()


class JetStreamPlace:
    """Buses of one run on a NATS server; the run is deleted afterwards."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._run = f"t{uuid.uuid4().hex[:12]}"
        self._opened: list[JetStreamBus] = []

    async def bus(
        self,
        *,
        log_bytes: int = 64 << 20,
        readers: Sequence[Reader] = READERS,
        health: Health | None = None,
    ) -> Bus:
        settings = NatsSettings(url=self._url, log_bytes=log_bytes)
        bus = await jetstream.connect(settings, self._run, health=health)
        self._opened.append(bus)
        await bus.ensure_logs(settings, (*READERS, *(r for r in readers if r not in READERS)))
        return bus

    async def close(self) -> None:
        if self._opened:
            await self._opened[0].delete_run()
        for bus in self._opened:
            await bus.close()


Place = MemoryPlace | JetStreamPlace


@pytest.fixture(params=["memory", "jetstream"])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    opened = (
        MemoryPlace()
        if request.param == "memory"
        else JetStreamPlace(request.getfixturevalue("nats_url"))
    )
    yield opened
    await opened.close()


@pytest.fixture
async def bus(place: Place) -> Bus:
    return await place.bus()
