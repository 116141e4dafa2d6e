"""What the supervisor must know about operating system processes: their lives and their memory."""

import ctypes
import os
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Get SIGTERM when the parent dies, however it dies; leave now if it is dead already.

    Called by the child itself: a hook between fork and exec is unsafe once there are threads.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        sys.exit(f"parent {parent} is gone")


def limit_threads(threads: int) -> None:
    """Before numpy or torch is imported: their pools are sized once, and default to all cores."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def descendants(root: int) -> list[int]:
    """Process ids of `root` and all below it that are alive."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # The command's name may hold spaces and brackets; the rest follows its last bracket.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended while we looked
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        found.append(pid)
        queue += children.get(pid, [])
    return found


def memory_bytes(pids: list[int]) -> int:
    """Memory that the processes use together; pages they share are counted once (PSS)."""
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue  # it ended, or belongs to somebody else
        total += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return total * 1024
