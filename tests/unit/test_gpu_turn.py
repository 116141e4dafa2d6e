"""Turns on a shared GPU, between two parties that each hold the lock file open."""

import subprocess
import sys
from pathlib import Path

from broker.gpu_turn import GpuTurn


def test_the_learner_has_the_gpu_alone_and_engines_have_it_together(tmp_path: Path):
    learner = GpuTurn.of_learner(tmp_path)
    engines = [GpuTurn.of_engine(tmp_path) for _ in range(2)]

    assert [engine.take() for engine in engines] == [True, True]
    assert not learner.take()
    engines[0].give()
    assert not learner.take(), "the other is still awake"
    engines[1].give()
    assert learner.take()
    assert not engines[0].take()
    learner.give()
    assert engines[0].take()


def test_a_turn_ends_with_its_process_unless_a_child_keeps_the_lock(tmp_path: Path):
    learner = GpuTurn.of_learner(tmp_path)
    engine = GpuTurn.of_engine(tmp_path)
    engine.take()
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[engine.descriptor]) as child:
        engine.close()
        assert not learner.take(), "as while orphans of an engine still hold memory"
        child.communicate()

    assert learner.take()
