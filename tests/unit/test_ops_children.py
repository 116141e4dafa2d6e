"""Processes of one machine: when dying again is hopeless, and that nothing outlives its supervisor."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import BadConfiguration, Conflict, Replaced
from ops.children import Child, CrashLoop, Death, Job, RoleFailed, describe, tail
from ops.failures import first_of
from ops.processes import MemoryPeak, descendants
from ops.services import is_alive


def test_five_deaths_in_a_minute_without_progress_are_a_crash_loop():
    loop = CrashLoop()

    found = [loop.record(Death(second, 1, progress=9)) for second in range(5)]

    assert found == [False, False, False, False, True]


def test_deaths_while_the_run_moves_on_are_none():
    loop = CrashLoop()

    assert not any(loop.record(Death(second, -9, progress=second)) for second in range(50))


def test_deaths_far_apart_are_none():
    loop = CrashLoop()

    assert not any(loop.record(Death(second, 1, progress=9)) for second in range(0, 2000, 20))


def test_a_refused_configuration_is_tried_twice():
    loop = CrashLoop()

    assert [loop.record(Death(second, 2, progress=0)) for second in range(2)] == [False, True]


def test_a_refusal_counts_however_slow_the_starts_are():
    loop = CrashLoop()

    assert [loop.record(Death(at, 2, progress=0)) for at in (100, 250)] == [False, True]


def test_a_refusal_that_the_run_got_over_counts_no_more():
    loop = CrashLoop()

    assert not any(loop.record(Death(200 * n, 2, progress=n)) for n in range(20))


@given(st.lists(st.floats(0, 10), min_size=1, max_size=20))
def test_pauses_grow_and_are_bounded(gaps: list[float]):
    loop, now, pauses = CrashLoop(), 0.0, []
    for gap in gaps:
        now += gap / 100
        loop.record(Death(now, 1, progress=0))
        pauses.append(loop.pause_s())

    assert pauses == sorted(pauses)
    assert pauses[0] > 0
    assert pauses[-1] <= 5.0


def a_job(folder: Path, code: str, first: tuple[str, ...] = ()) -> Job:
    return Job("policy", 0, (sys.executable, "-c", code), folder / "log", dict(os.environ), first)


async def test_a_process_that_keeps_dying_ends_the_run_with_its_last_words(tmp_path: Path):
    child = Child(a_job(tmp_path, "import sys; sys.exit('no such model')"))

    with pytest.raises(RoleFailed, match=r"policy-0 ended 5 times.*a bug[\s\S]*no such model"):
        await child.keep(progress=lambda: 0, is_over=lambda code: code == 0, changed=lambda: None)

    assert child.starts == 5


async def test_a_restarted_process_does_not_get_the_first_arguments_again(tmp_path: Path):
    child = Child(a_job(tmp_path, "import sys; print(sys.argv[1:])", ("--resume",)))
    ends = iter((False, True))

    await child.keep(progress=lambda: 0, is_over=lambda code: next(ends), changed=lambda: None)

    assert (tmp_path / "log").read_text().splitlines() == ["['--resume']", "[]"]
    assert child.done


async def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path):
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print('up', flush=True); time.sleep(60)"
    )
    child = Child(a_job(tmp_path, code))
    keeping = asyncio.create_task(
        child.keep(progress=lambda: 0, is_over=lambda code: True, changed=lambda: None)
    )
    await asyncio.to_thread(eventually, lambda: "up" if "up" in tail(tmp_path / "log") else "")

    await child.end(0.3)

    await asyncio.wait_for(keeping, 5)
    assert child.pid is None
    assert child.process is not None
    assert child.process.returncode == -signal.SIGKILL


def test_children_die_with_their_supervisor_even_when_it_is_killed(tmp_path: Path):
    child = (
        "import os, time; from ops.processes import die_with; die_with(int(os.environ['SLUICE_PARENT']));"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    )
    parent = (
        "import os, subprocess, sys, time; os.environ['SLUICE_PARENT'] = str(os.getpid());"
        f"subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(60)"
    )
    supervisor = subprocess.Popen([sys.executable, "-c", parent])
    pid = int(eventually(lambda: (tmp_path / "pid").read_text()))

    supervisor.kill()
    supervisor.wait()

    assert eventually(lambda: "gone" if not is_alive(pid) else "")


def eventually(look: Callable[[], str], limit_s: float = 20.0) -> str:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        try:
            if found := look():
                return found
        except FileNotFoundError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"nothing within {limit_s} s")


def test_a_child_whose_parent_is_gone_already_leaves_at_once():
    done = subprocess.run(
        [sys.executable, "-c", "from ops.processes import die_with; die_with(1 << 21)"],
        capture_output=True,
        text=True,
    )

    assert done.returncode == 1
    assert "is gone" in done.stderr


def test_memory_is_counted_over_all_descendants():
    child = subprocess.Popen([sys.executable, "-c", "x = b'1' * 50_000_000; print(1, flush=True); input()"],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    assert child.stdout is not None
    child.stdout.readline()
    try:
        pids = descendants(os.getpid())

        assert child.pid in pids
        alone, together = MemoryPeak(), MemoryPeak()
        alone.look([child.pid])
        together.look(pids)
        assert 50_000_000 < alone.most_bytes < together.most_bytes
    finally:
        child.communicate(b"\n")


def test_exit_codes_are_told_in_words():
    assert "SIGKILL" in describe(-9)
    assert "replaced" in describe(3)


def test_being_replaced_explains_every_other_error():
    bug, plain = ValueError("x"), Conflict("s", 1)
    group = ExceptionGroup("a", [bug, ExceptionGroup("b", [plain, Replaced("twin")])])

    assert isinstance(first_of(group), Replaced)
    assert first_of(ExceptionGroup("a", [bug, BadConfiguration("k")])).args == ("k",)
    assert first_of(ExceptionGroup("a", [bug])) is bug
