"""What the operating system asks of an embedded server: a user who may run it, rights, locks, a socket."""

import fcntl
import hashlib
import os
import pwd
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from broker.errors import TooLong, Unreachable

SOCKET_PATH_BYTES = 100
"""Linux allows 107 bytes for `<directory>/.s.PGSQL.5432`; some are left for the suffix."""


def server_user() -> pwd.struct_passwd | None:
    """Whom the server runs as when we are root; None: as ourselves."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise Unreachable("running as root, and neither user postgres nor user nobody exists")


def _owner_id() -> int:
    user = server_user()
    return os.geteuid() if user is None else user.pw_uid


def give_away(path: Path) -> None:
    user = server_user()
    if user is not None:
        os.chown(path, user.pw_uid, user.pw_gid)


def let_server_user_in(directory: Path, binaries: Path) -> None:
    """As root: let the server's user pass to its folder and its programs, and no further."""
    user = server_user()
    if user is None:
        return
    for path in (*directory.parents, directory, *binaries.parents, binaries):
        _add_mode(path, stat.S_IXOTH)
    if not (binaries / "postgres").stat().st_mode & stat.S_IXOTH:
        # Installed under a strict umask.
        for path in binaries.parent.rglob("*"):
            executable = path.is_dir() or path.stat().st_mode & stat.S_IXUSR
            _add_mode(path, stat.S_IROTH | (stat.S_IXOTH if executable else 0))


def _add_mode(path: Path, bits: int) -> None:
    mode = path.stat().st_mode
    if mode & bits != bits:
        path.chmod(mode | bits)


def socket_directory(directory: Path) -> Path:
    """Where the socket lies: the same for the same directory, short enough, closed to others."""
    sockets = directory / "socket"
    if len(os.fsencode(sockets)) > SOCKET_PATH_BYTES - len("/.s.PGSQL.5432"):
        digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
        sockets = Path(tempfile.gettempdir()) / f"sluice-{os.getuid()}-{digest}"
    sockets.mkdir(mode=0o700, exist_ok=True)
    if sockets.stat().st_uid not in (os.geteuid(), _owner_id()):
        raise Unreachable(f"{sockets}: belongs to another user")
    give_away(sockets)
    return sockets


def run(program: Path, arguments: Sequence[str], limit_s: float) -> None:
    user = server_user()
    identity = (
        {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    )
    with tempfile.TemporaryFile() as output:  # a pipe would be held open by the server
        try:
            subprocess.run(
                [str(program), *arguments],
                check=True, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                timeout=limit_s, cwd="/", env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}, **identity,
            )  # fmt: skip
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            output.seek(0)
            said = output.read().decode(errors="replace").strip()
            raise Unreachable(f"{program.name}: {error}: {said}") from error


def try_exclusive(user: int) -> bool:
    try:
        fcntl.flock(user, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(path: Path, limit_s: float) -> Iterator[None]:
    """Holds a file lock that ends with the process."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = time.monotonic() + limit_s
        while not try_exclusive(file):
            if time.monotonic() > deadline:
                raise TooLong(f"{path}: another process holds it for more than {limit_s:.0f} s")
            time.sleep(0.05)
        yield
    finally:
        os.close(file)
