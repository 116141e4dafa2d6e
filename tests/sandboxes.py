"""Which sandboxes there are on this machine."""

import time
from pathlib import Path

IN_TIME_S = 30.0
"""Of wall clock, on a busy machine; a program that was not stopped would run for minutes."""


def sandboxed() -> set[int]:
    """Processes of any sandbox of this machine."""
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and b"The program's side" in (entry / "cmdline").read_bytes():
                found.add(int(entry.name))
        except OSError:
            continue
    return found


def wait_until_gone(pids: set[int]) -> None:
    """Other tests' sandboxes may have come meanwhile: they go as well."""
    deadline = time.monotonic() + IN_TIME_S
    while pids & sandboxed():
        assert time.monotonic() < deadline, f"left: {pids & sandboxed()}"
        time.sleep(0.05)
