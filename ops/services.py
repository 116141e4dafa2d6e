"""NATS and Postgres for runs on one machine, shared by every run and command of a `runs` folder.

Both servers keep their data, address and password from start to start. Postgres counts its users
itself. One process at a time owns the NATS server; when the owner leaves, or is killed, the next
process that still needs the server starts it again at the same address, and clients reconnect.
"""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from broker import embedded as embedded_nats
from broker.errors import BadConfiguration, TooLong
from broker.settings import NatsSettings
from ops.failures import first_of

if TYPE_CHECKING:
    from store.embedded import EmbeddedPostgres

JOIN_LIMIT_S = 30.0
"""How long another process may take to bring up the NATS server that we want to share."""
WATCH_S = 0.5
SERVED = ("sync_interval", "max_payload_bytes")
"""Settings of the server itself: all who share it must agree."""


class Services:
    """The servers that one process uses; `close` leaves them to the others, or stops them."""

    def __init__(self, folder: Path, nats: NatsSettings, store_url: str | None) -> None:
        self._folder = folder
        self._nats_settings = nats
        self._nats: embedded_nats.EmbeddedNats | None = None
        self._joined_pid: int | None = None
        self._postgres: EmbeddedPostgres | None = None
        self.nats_url = nats.url or ""
        self.store_url = store_url or ""

    # The servers start and stop in threads: it takes seconds, and the loop has others to serve.

    async def open_nats(self) -> str:
        """Start or join the embedded server, unless the configuration names one."""
        if not self._nats_settings.url:
            await asyncio.to_thread(self._open_nats)
        return self.nats_url

    async def open_postgres(self) -> str:
        """Start or join the embedded server, unless the configuration names one."""
        if not self.store_url:
            await asyncio.to_thread(self._start_postgres)
        return self.store_url

    def _start_postgres(self) -> None:
        from store import embedded  # brings a database driver that most commands do without

        self._postgres = embedded.start(self._folder / "postgres")
        self.store_url = self._postgres.url

    def _restart_postgres(self) -> None:
        gone, self._postgres = self._postgres, None
        if gone is not None:
            gone.stop()
        self._start_postgres()

    def _open_nats(self) -> None:
        folder = self._folder / "nats"
        folder.mkdir(parents=True, exist_ok=True)
        wanted = {name: getattr(self._nats_settings, name) for name in SERVED}
        deadline = time.monotonic() + JOIN_LIMIT_S
        while True:
            try:
                self._nats = embedded_nats.start(folder, self._nats_settings)
            except embedded_nats.InUse:
                pass
            else:
                (folder / "served.json").write_text(json.dumps(wanted))
                self.nats_url, self._joined_pid = self._nats.url, None
                return
            endpoint = running(folder)
            if endpoint is not None:
                check_served(folder, wanted)
                self.nats_url, self._joined_pid = address(endpoint), endpoint.pid
                return
            if time.monotonic() > deadline:
                raise TooLong(f"{folder}: another process owns it, but no server answers there")
            time.sleep(0.1)

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Bring back a server that dies, or that its owner takes along, while the body runs."""
        leaving = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch(leaving))
                try:
                    yield
                finally:
                    leaving.set()
        except BaseExceptionGroup as failures:
            raise first_of(failures) from None

    async def _watch(self, leaving: asyncio.Event) -> None:
        while not leaving.is_set():
            await self._mend_nats()
            await self._mend_postgres()
            with suppress(TimeoutError):
                await asyncio.wait_for(leaving.wait(), WATCH_S)

    async def _mend_nats(self) -> None:
        if self._nats is not None and not self._nats.is_running:
            await _to_its_end(self._nats.restart)
        elif self._joined_pid is not None and not is_alive(self._joined_pid):
            await _to_its_end(self._open_nats)

    async def _mend_postgres(self) -> None:
        if self._postgres is not None and not is_alive(self._postgres.pid):
            await _to_its_end(self._restart_postgres)

    def pids(self) -> dict[str, list[int]]:
        """Of the servers, owned or joined."""
        nats = self._nats.pid if self._nats is not None else self._joined_pid
        found = {"nats": nats, "postgres": self._postgres and self._postgres.pid}
        return {name: [pid] for name, pid in found.items() if pid is not None}

    async def close(self) -> None:
        nats, self._nats = self._nats, None
        postgres, self._postgres = self._postgres, None
        try:
            if nats is not None:
                await asyncio.to_thread(nats.stop)
        finally:
            if postgres is not None:
                await asyncio.to_thread(postgres.stop)


async def _to_its_end(start: Callable[[], None]) -> None:
    """In a thread, and not left by a cancellation: nobody would end the server that it brings up."""
    work = asyncio.ensure_future(asyncio.to_thread(start))
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait({work})
        raise


def running(folder: Path) -> embedded_nats.Endpoint | None:
    """The server of the folder, if one accepts connections."""
    try:
        endpoint = embedded_nats.Endpoint(**json.loads((folder / "endpoint.json").read_text()))
        socket.create_connection(("127.0.0.1", endpoint.port), timeout=1.0).close()
    except OSError:
        return None
    return endpoint


def address(endpoint: embedded_nats.Endpoint) -> str:
    return f"nats://{embedded_nats.USER}:{endpoint.password}@127.0.0.1:{endpoint.port}"


def check_served(folder: Path, wanted: dict[str, object]) -> None:
    """BadConfiguration when the server that runs was started with other settings than we ask for."""
    try:
        found = json.loads((folder / "served.json").read_text())
    except FileNotFoundError:
        return
    for name, value in wanted.items():
        if found.get(name) != value:
            raise BadConfiguration(
                f"nats.{name} {value!r}: the embedded server of {folder.parent.parent} runs with "
                f"{found.get(name)!r} for another run; wait for it, or choose another --runs folder"
            )


def is_alive(pid: int) -> bool:
    """A zombie is dead."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
