"""Whether the learner computes at the moment, for engines that compute on the same cores.

A lock on a file of the run's folder: the kernel gives it up with the process that holds it, and where the
folder is this machine's own nobody steps aside for a learner on another. Nor does anybody where files cannot
be locked.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FILE = "cpu.lock"
TRIES, PAUSE_S = 20, 0.001


class CpuTurn:
    """One process' view of it. A hint: neither side ever waits for the other's lock."""

    def __init__(self, run_dir: Path) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(run_dir / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """While the learner computes."""
        # Shared, so that a stopped twin does not hide its successor; an engine that looks lets go at once.
        for _ in range(TRIES):
            if self._lock(fcntl.LOCK_SH) is not False:
                break
            time.sleep(PAUSE_S)
        try:
            yield
        finally:
            self._unlock()

    def is_taken(self) -> bool:
        """Also for a moment when another engine looks."""
        locked = self._lock(fcntl.LOCK_EX)
        if locked:
            self._unlock()
        return locked is False

    def _lock(self, mode: int) -> bool | None:
        """False: others hold it; None: there are no locks here."""
        try:
            fcntl.flock(self._descriptor, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return None
        return True

    def _unlock(self) -> None:
        with suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
