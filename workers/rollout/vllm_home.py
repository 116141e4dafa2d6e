"""What one engine leaves on its machine, and who sees to it when the engine's process has died."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from workers.rollout import vllm_reaper


def home(cache_dir: Path) -> Path:
    """A new folder for one engine; those of processes that have died without removing theirs go."""
    ours = f"vllm-{socket.gethostname()}"
    cache_dir.mkdir(parents=True, exist_ok=True)
    for folder in cache_dir.glob(f"{ours}-*"):
        host, pid, started, _ = folder.name.rsplit("-", 3)
        # In a container the next life has the same id; only with its start is it told apart.
        if host == ours and started != str(start_of(int(pid))):
            shutil.rmtree(folder, ignore_errors=True)
    owner = f"{os.getpid()}-{start_of(os.getpid())}"
    return Path(tempfile.mkdtemp(prefix=f"{ours}-{owner}-", dir=cache_dir))


def start_of(pid: int) -> int:
    """When a process started, in its system's own count; 0 when it is gone."""
    found = vllm_reaper.parent_and_start(pid)
    return found[1] if found else 0


def start_reaper(kept_open: Sequence[int]) -> "subprocess.Popen[bytes]":
    """Knows of the engine's processes from their first moment, and outlives this one.

    kept_open: file descriptors that nobody else may lock before it has ended those processes.
    """
    command = [sys.executable, "-I", vllm_reaper.__file__, str(os.getpid())]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, start_new_session=True, pass_fds=kept_open
    )
