"""What tests ask of processes that are not their children."""

from pathlib import Path


def alive(pid: int) -> bool:
    """A process that has ended and was not waited for is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
