"""Whose turn it is on a GPU that the learner and the engines of one run share.

A lock on a file of the run's folder: the kernel gives it up with the last process that holds it open, so
nobody waits for the dead. The learner takes it alone; engines share it among each other.
"""

import fcntl
import os
from pathlib import Path

FILE = "gpu.lock"
LIMIT_S = 3600.0
"""Nobody needs the GPU for longer at a time unless it is stuck."""


class GpuTurn:
    """One party's hold on the turn; made without it."""

    def __init__(self, run_dir: Path, mode: int) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        self.descriptor = os.open(run_dir / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        """Who inherits it keeps the turn from the others as long as it lives."""
        self._mode = mode

    @classmethod
    def of_learner(cls, run_dir: Path) -> "GpuTurn":
        return cls(run_dir, fcntl.LOCK_EX)

    @classmethod
    def of_engine(cls, run_dir: Path) -> "GpuTurn":
        return cls(run_dir, fcntl.LOCK_SH)

    def take(self) -> bool:
        """False while it is somebody else's."""
        try:
            fcntl.flock(self.descriptor, self._mode | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def give(self) -> None:
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self.descriptor)
