"""Programs that cheat or harm: none passes, each ends in time with a reason, nothing of them is left."""

import platform
import resource
import socket
import time
from collections.abc import Iterator

import pytest

from tests.hostile_programs import PROGRAMS, RIGHT
from tests.sandboxes import IN_TIME_S, sandboxed, wait_until_gone
from workers.verifiers.code import Code

TESTS = [
    {"args": [2], "expected": 11},
    {"args": [3], "expected": 16},
    {"args": [-1], "expected": 8},
]
VERIFIER = Code(
    entry="f", seconds=0.5, total_seconds=1.5, memory_bytes=128 << 20, output_bytes=65536
)
GROWTH_KIB = 48 * 1024


def fenced(source: str) -> str:
    return f"```python\n{source}```"


@pytest.fixture(scope="module")
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def test_a_program_that_makes_files_without_end_is_stopped_for_that():
    source = f"for n in range(100_000): open(f'/scratch/{{n}}', 'w').close()\n{RIGHT}"
    verifier = VERIFIER.model_copy(update={"seconds": 20.0, "total_seconds": 20.0})

    finding = verifier.grade(fenced(source), None, {"tests": TESTS})

    assert finding.score == 0.0
    assert "more than 2000 files" in finding.detail


def test_the_task_can_be_solved_in_the_same_sandbox():
    finding = VERIFIER.grade(fenced(RIGHT), None, {"tests": TESTS})

    assert (finding.status, finding.score, finding.detail) == ("ok", 1.0, "")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="system-call numbers of x86_64")
@pytest.mark.parametrize("mechanism", PROGRAMS)
def test_no_hostile_program_passes_and_none_is_left(mechanism: str, listener: socket.socket):
    before = sandboxed()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    port = str(listener.getsockname()[1])
    assert len(PROGRAMS[mechanism]) >= 3

    for source in PROGRAMS[mechanism]:
        started = time.monotonic()
        finding = VERIFIER.grade(fenced(source.replace("PORT", port)), None, {"tests": TESTS})

        assert (finding.status, finding.score) == ("ok", 0.0), source
        assert finding.detail, source
        assert time.monotonic() - started < IN_TIME_S, source
    with pytest.raises(BlockingIOError):
        listener.accept()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < GROWTH_KIB
    wait_until_gone(sandboxed() - before)
