"""Who sees that the learner computes."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from broker.cpu_turn import CpuTurn

HOLDER = """
import sys
from pathlib import Path
from broker.cpu_turn import CpuTurn
with CpuTurn(Path(sys.argv[1])).taken():
    print("taken", flush=True)
    sys.stdin.read()
"""


def test_engines_see_it_as_long_as_it_computes(tmp_path: Path):
    learner, engines = CpuTurn(tmp_path), [CpuTurn(tmp_path) for _ in range(2)]

    assert [engine.is_taken() for engine in engines] == [False, False]
    with learner.taken():
        assert [engine.is_taken() for engine in engines] == [True, True]
    assert [engine.is_taken() for engine in engines] == [False, False]


def test_a_learner_whose_step_fails_is_done(tmp_path: Path):
    learner, engine = CpuTurn(tmp_path), CpuTurn(tmp_path)
    try:
        with learner.taken():
            raise ZeroDivisionError
    except ZeroDivisionError:
        assert not engine.is_taken()


def test_a_stopped_twin_holds_up_nobody_and_a_dead_one_is_not_seen(tmp_path: Path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as twin:
        assert twin.stdout is not None
        assert twin.stdout.readline() == b"taken\n"
        os.kill(twin.pid, signal.SIGSTOP)
        successor, engine = CpuTurn(tmp_path), CpuTurn(tmp_path)

        try:
            with successor.taken():
                assert engine.is_taken()
        finally:
            twin.kill()
            twin.wait(timeout=10)

        assert not engine.is_taken()
        with successor.taken():
            assert engine.is_taken()
        assert not engine.is_taken()


def test_where_files_cannot_be_locked_nobody_is_seen_and_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refused(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    learner, engine = CpuTurn(tmp_path), CpuTurn(tmp_path)
    monkeypatch.setattr(fcntl, "flock", refused)

    with learner.taken():
        assert not engine.is_taken()
