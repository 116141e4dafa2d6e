"""What a sandboxed program has used, seen from outside. It cannot see this, nor change it."""

import os
from pathlib import Path


def program_of(reaper: int) -> int | None:
    """The process that the sandbox's first process started; both ids as seen from outside."""
    # It is nearly always the next id; only a busy machine makes this look further.
    for pid in range(reaper + 1, reaper + 64):
        if _parent(pid) == reaper:
            return pid
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _parent(int(entry.name)) == reaper:
            return int(entry.name)
    return None


def queued_s(pid: int | None) -> float:
    """Seconds that a process has waited for a processor since it began; 0 where it cannot be known."""
    if pid is None:
        return 0.0
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        # Gone, or a kernel without these figures: then its wall-clock time counts.
        return 0.0


def files_of(reaper: int, folder: str) -> int:
    """Files and folders within the sandbox's writable folder; 0 when it is gone."""
    try:
        found = os.statvfs(f"/proc/{reaper}/root{folder}")
    except OSError:
        return 0
    return found.f_files - found.f_ffree


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return None
