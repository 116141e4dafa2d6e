"""Ends vLLM's processes when the process that started them has died: they would wait for it for ever.

A program of its own, `python vllm_reaper.py PARENT`, with nothing but the standard library. It remembers all
that runs below the parent, since orphans cannot be told from others. Its input ends when the parent does; a
byte before that means that the parent has ended its engine itself.
"""

import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path

POLL_S = 0.5

Process = tuple[int, int]
"""Process id and start time, which together are never used twice."""


def below(root: int) -> set[Process]:
    """Whatever runs below a process, but this program."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    known = {pid: at for pid in pids if (at := parent_and_start(pid))}
    found: set[Process] = set()
    parents = {root}
    while parents:
        children = {pid for pid, (parent, _) in known.items() if parent in parents}
        children.discard(os.getpid())
        found |= {(pid, known[pid][1]) for pid in children}
        parents = children
    return found


def main(parent: int) -> None:
    seen: set[Process] = set()
    while not select.select([sys.stdin], [], [], POLL_S)[0]:
        seen = below(parent)
    if os.read(sys.stdin.fileno(), 1):
        return
    # Ask again: children of orphans are still below them.
    later = {child for process, _ in seen for child in below(process)}
    for pid, started in seen | later:
        found = parent_and_start(pid)
        if found and found[1] == started:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def parent_and_start(pid: int) -> tuple[int, int] | None:
    """None when it is gone."""
    try:
        # The name may hold spaces and brackets; after the last one: state, parent, ..., start time.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[1]), int(fields[19])


if __name__ == "__main__":
    main(int(sys.argv[1]))
