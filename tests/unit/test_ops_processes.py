import os
import platform
import signal
import subprocess
import sys
from mmap import mmap

import pytest

from ops.processes import MemoryPeak

MIB = 1 << 20


def touched(size: int) -> mmap:
    """Memory of this process alone, given back to the kernel when closed."""
    memory = mmap(-1, size)
    memory.write(b"x" * size)
    return memory


def test_the_most_memory_is_kept_after_it_was_given_back():
    peak, me = MemoryPeak(), os.getpid()
    peak.look([me])
    before = peak.most_bytes
    assert before > 10 * MIB

    with touched(200 * MIB):
        peak.look([me])
    most = peak.most_bytes
    assert before + 190 * MIB < most < before + 300 * MIB

    peak.look([me])
    assert peak.most_bytes == most


def test_pages_that_processes_share_are_counted_once():
    with touched(200 * MIB):
        alone = MemoryPeak()
        alone.look([os.getpid()])
        child = os.fork()
        if child == 0:
            signal.pause()
        both = MemoryPeak()
        both.look([os.getpid(), child])
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    assert both.most_bytes < alone.most_bytes + 100 * MIB


def test_a_process_that_has_ended_uses_none():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    peak = MemoryPeak()

    peak.look([ended.pid])

    assert peak.most_bytes == 0


MEMORY = """
import resource, sys, threading
from ops.processes import keep_freed_memory

if sys.argv[1] == "kept":
    keep_freed_memory()
found = []

def step():
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [b"x" * (n << 20) for n in (40, 120, 60)]
        del blocks
        found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

thread = threading.Thread(target=step)
thread.start()
thread.join()
print(max(found[1:]))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_large_blocks_of_a_thread_are_used_again_without_the_kernel():
    faults = {
        how: int(subprocess.check_output([sys.executable, "-c", MEMORY, how], text=True))
        for how in ("kept", "given back")
    }

    assert faults["kept"] < 1_000 < 20_000 < faults["given back"]
