"""What the supervisor must know about operating system processes: their lives and their memory."""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
NOTICEABLY_MORE = 1.01

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
"""glibc's names: how much unused memory stays, how many blocks are mapped apart, how many heaps."""
KEPT_BYTES = 2**31 - 1
"""The most that glibc takes."""


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
    # A thread that waits for its team takes the core from another process; one that sleeps at once is late
    # for the next of many short products. About 0.1 ms in between, where torch brings GNU's library.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def keep_freed_memory() -> None:
    """Where the C library is glibc: let the next step have the pages that this one frees. Before any thread.

    Otherwise large blocks go back to the kernel, which clears their pages one by one for the next step: a
    tenth of a step on a CPU. One heap, since those of threads take no large blocks.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_ARENA_MAX, 1)
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


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


class MemoryPeak:
    """The most memory that some processes used together, as far as one has looked."""

    def __init__(self) -> None:
        self.most_bytes = 0
        self._resident_then = 0

    def look(self, pids: Sequence[int]) -> None:
        """Closely only where it may be more than before: the kernel walks all pages of a process for that."""
        resident = sum(map(_resident_bytes, pids))
        if resident > self._resident_then * NOTICEABLY_MORE:
            self._resident_then = resident
            self.most_bytes = max(self.most_bytes, sum(map(_proportional_bytes, pids)))


def _resident_bytes(pid: int) -> int:
    """Of one process, pages that it shares in full; 0 when it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
    except OSError:
        return 0


def _proportional_bytes(pid: int) -> int:
    """Of one process, of shared pages its share (PSS); 0 when it has ended or belongs to somebody else."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
