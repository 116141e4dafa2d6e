"""Processes of an engine whose owner dies."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ops.processes import descendants
from tests.processes import alive
from workers.rollout import vllm_reaper

OWNER = """
import subprocess, sys
reaper = subprocess.Popen([sys.executable, sys.argv[1], str(__import__("os").getpid())],
                          stdin=subprocess.PIPE, start_new_session=True)
print("reaper", flush=True)
sys.stdin.readline()
inner = "import subprocess, time; subprocess.Popen(['sleep', '60']); time.sleep(60)"
subprocess.Popen([sys.executable, "-c", inner], start_new_session=True)
print("engine", flush=True)
if sys.stdin.readline() == "over\\n":
    reaper.stdin.write(b"x")
    reaper.stdin.flush()
    print("told", flush=True)
    sys.stdin.readline()
"""


def an_owner() -> "subprocess.Popen[str]":
    """A process with a reaper and, below it, one with a child of its own."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, vllm_reaper.__file__],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert owner.stdin
    assert owner.stdout
    assert owner.stdout.readline() == "reaper\n"
    time.sleep(2 * vllm_reaper.POLL_S)
    owner.stdin.write("go\n")
    owner.stdin.flush()
    assert owner.stdout.readline() == "engine\n"
    return owner


def names(pids: list[int]) -> dict[int, str]:
    return {pid: Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ") for pid in pids}


def wait(holds: Callable[[], bool], limit_s: float = 10.0) -> bool:
    until = time.monotonic() + limit_s
    while not holds() and time.monotonic() < until:
        time.sleep(0.05)
    return holds()


@pytest.fixture
def owner():
    owner = an_owner()
    below: list[int] = []
    assert wait(lambda: len(descendants(owner.pid)) == 4)
    below = descendants(owner.pid)[1:]
    time.sleep(2 * vllm_reaper.POLL_S)
    yield owner, below
    owner.kill()
    for pid in below:
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
    owner.communicate()


def test_what_runs_below_a_killed_owner_ends_with_it(
    owner: tuple["subprocess.Popen[str]", list[int]],
):
    process, below = owner

    process.kill()
    process.wait(10)

    assert wait(lambda: not any(map(alive, below))), names(list(filter(alive, below)))


def test_an_owner_that_has_ended_its_engine_may_leave_the_rest_alone(
    owner: tuple["subprocess.Popen[str]", list[int]],
):
    process, below = owner
    # Named while all of them live: a process that is on its way out has no name any more.
    reaper = [pid for pid, name in names(below).items() if "reaper" in name]
    assert len(reaper) == 1
    assert process.stdin
    assert process.stdout
    process.stdin.write("over\n")
    process.stdin.flush()
    assert process.stdout.readline() == "told\n"

    process.kill()
    process.wait(10)

    assert wait(lambda: not any(map(alive, reaper)))
    assert sum(map(alive, below)) == 2
