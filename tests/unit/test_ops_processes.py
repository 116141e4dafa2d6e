import os
import signal
import subprocess
import sys
from mmap import mmap

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
