"""Grader processes: what hangs, eats memory, crashes or is killed ends in time and hurts nobody else."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.processes import alive
from tests.sandboxes import sandboxed, wait_until_gone
from workers.verifiers import canaries
from workers.verifiers.calls import Graded
from workers.verifiers.math import Math
from workers.verifiers.pool import Pool
from workers.verifiers.protocol import Canary, GraderBroken

TROUBLE = """
import ctypes, os, signal, time
from workers.verifiers.protocol import Finding, Ungradable, Verifier, judged


class Trouble(Verifier):
    version = "3"
    strict: bool = False

    def check(self, target, item):
        if target == "spin":
            while True:
                pass

    def grade(self, response, target, item):
        match response.split():
            case ["spin"]:
                while True:
                    pass
            case ["wait"]:
                time.sleep(60)
            case ["eat"]:
                return [0] * 10**11
            case ["overflow"]:
                return response * 10**15
            case ["segv"]:
                ctypes.string_at(0)
            case ["abort"]:
                os.abort()
            case ["kill"]:
                os.kill(os.getpid(), signal.SIGKILL)
            case ["once", path]:
                if not os.path.exists(path):
                    open(path, "w").close()
                    os.kill(os.getpid(), signal.SIGKILL)
            case ["exit"]:
                raise SystemExit(0)
            case ["raise"]:
                raise ValueError("a bug")
            case ["deep"]:
                return self.grade(response, target, item)
            case ["nan"]:
                return Finding("ok", float("nan"))
            case ["two"]:
                return Finding("ok", 2.0)
            case ["none"]:
                return None
            case ["surrogate"]:
                return judged(True, "\\ud800", "\\ud800")
            case ["print"]:
                print("x" * 10_000_000)
        return judged(response == target, response, response)
"""


@pytest.fixture
def trouble(tmp_path: Path) -> dict[str, object]:
    file = tmp_path / "trouble.py"
    file.write_text(TROUBLE)
    return {"name": f"{file}:Trouble"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[Pool]:
    async with Pool(size=2, deadline_s=1.0, memory_bytes=1 << 30) as pool:
        yield pool


pytestmark = pytest.mark.asyncio(loop_scope="module")


def append(path: str, text: str) -> None:
    with open(path, "a") as file:
        file.write(text)


async def grade(pool: Pool, spec: dict[str, object], *answers: str, target: str = "ok") -> Graded:
    return await pool.grade(spec, target, dict(enumerate(answers)))


@pytest.mark.parametrize(
    ("answer", "status", "reason"),
    [
        ("spin", "ok", "exceeded 1 s"),
        ("eat", "ok", "bytes of memory"),
        ("overflow", "ok", "bytes of memory"),
        ("segv", "ok", "signal 11"),
        ("abort", "ok", "signal 6"),
        ("deep", "ok", "too deep"),
        ("wait", "timeout", "processor time"),
        ("kill", "verifier_error", "status -9"),
        ("exit", "verifier_error", "SystemExit"),
        ("raise", "verifier_error", "ValueError: a bug"),
        ("nan", "verifier_error", "score nan"),
        ("two", "verifier_error", "score 2.0"),
        ("none", "verifier_error", "NoneType"),
    ],
)
async def test_fault_decides_and_the_neighbours_keep_their_verdicts(
    pool: Pool, trouble: dict[str, object], answer: str, status: str, reason: str
):
    graded = await grade(pool, trouble, "ok", answer, "other")

    finding = graded.findings[1]
    assert (finding.status, finding.score) == (status, 0.0 if status == "ok" else None)
    assert reason in finding.detail
    assert [graded.findings[i].score for i in (0, 2)] == [1.0, 0.0]


async def test_an_answer_whose_grader_was_killed_from_outside_is_judged_again(
    pool: Pool, trouble: dict[str, object], tmp_path: Path
):
    answer = f"once {tmp_path / 'flag'}"

    graded = await grade(pool, trouble, answer, target=answer)

    assert graded.findings[0].score == 1.0


async def test_all_graders_may_be_killed_and_the_pool_goes_on(pool: Pool):
    for pid in pool.processes():
        os.kill(pid, signal.SIGKILL)

    graded = await asyncio.gather(*(grade(pool, {"name": "exact"}, "ok", "no") for _ in range(8)))

    assert [[g.findings[i].score for i in (0, 1)] for g in graded] == [[1.0, 0.0]] * 8
    assert len(pool.processes()) == 2


async def test_a_grader_killed_while_it_works_costs_no_verdict(
    pool: Pool, trouble: dict[str, object]
):
    busy = asyncio.create_task(grade(pool, trouble, "spin", "ok"))
    await asyncio.sleep(0.05)
    for pid in pool.processes():
        os.kill(pid, signal.SIGKILL)

    graded = await busy

    assert [graded.findings[i].score for i in (0, 1)] == [0.0, 1.0]


async def test_a_pool_whose_nursery_was_killed_builds_another():
    async with Pool(size=1, deadline_s=1.0, memory_bytes=1 << 30) as pool:
        os.kill(pool.nursery_pid(), signal.SIGKILL)

        graded = await grade(pool, {"name": "exact"}, "ok")

        assert graded.findings[0].score == 1.0


async def test_a_grader_knows_nothing_of_its_workers_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SLUICE_NATS__URL", "nats://user:secret@host")
    monkeypatch.setenv("SOME_API_KEY", "secret")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    (tmp_path / "tell.py").write_text(
        "import os\n"
        "from workers.verifiers.protocol import Verifier, judged\n"
        "class Tell(Verifier):\n"
        "    def grade(self, response, target, item):\n"
        "        return judged(True, ' '.join(sorted(os.environ)), None)\n"
    )
    async with Pool(size=1, deadline_s=5.0, memory_bytes=1 << 30) as pool:
        graded = await grade(pool, {"name": f"{tmp_path}/tell.py:Tell"}, "x")

    known = str(graded.findings[0].extracted).split()
    assert {"PATH", "LC_ALL", "PYTHONPATH"} <= set(known)
    assert not [name for name in known if name.startswith("SLUICE") or "KEY" in name]


async def test_no_process_outlives_the_pool():
    async with Pool(size=2, deadline_s=1.0, memory_bytes=1 << 30) as pool:
        pids = [*pool.processes(), pool.nursery_pid()]

    for _ in range(100):
        if any(map(alive, pids)):
            await asyncio.sleep(0.05)
    assert not any(map(alive, pids))


async def test_a_target_that_hangs_is_the_targets_fault(pool: Pool, trouble: dict[str, object]):
    graded = await grade(pool, trouble, "a", target="spin")

    assert graded.findings[0].status == "ungradable"
    assert graded.findings[0].score is None


async def test_an_unusable_target_is_ungradable_and_the_answers_are_still_read(pool: Pool):
    graded = await grade(
        pool, {"name": "math"}, r"\boxed{0.5}", r"\boxed{1/2}", target="see figure"
    )

    assert [graded.findings[i].status for i in (0, 1)] == ["ungradable", "ungradable"]
    assert graded.findings[0].answer_key == "1/2"
    assert graded.classes.of == {0: 0, 1: 0}


async def test_an_unlabelled_group_gets_classes_and_no_score(pool: Pool):
    answers = {5: r"\boxed{\frac{\sqrt2}{2}}", 2: r"\boxed{1}", 9: r"\boxed{2^{-1/2}}", 7: "what?"}

    graded = await pool.grade({"name": "math"}, None, answers)

    assert {f.score for i, f in graded.findings.items() if i != 7} == {None}
    assert graded.classes.of == {2: 0, 5: 1, 9: 1}
    assert graded.classes.unresolved == ()


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"name": "nonsense"}, "expected one of"),
        ({"name": "math", "tolerance": 1}, "tolerance"),
        ({"name": "/nowhere/mine.py:Grader"}, "no such Python file"),
        ({"name": "code", "memory_bytes": 1 << 31}, "verifier.memory_bytes = 1073741824"),
    ],
)
async def test_a_verifier_that_cannot_be_built_says_why(
    pool: Pool, spec: dict[str, object], reason: str
):
    graded = await grade(pool, spec, "ok")

    assert reason in graded.broken
    assert graded.findings == {}


async def test_a_verifier_of_ones_own_is_named_with_its_version_and_digest(
    pool: Pool, trouble: dict[str, object]
):
    first = await grade(pool, trouble, "ok")
    append(str(trouble["name"]).rpartition(":")[0], "\n# changed\n")
    second = await grade(pool, trouble, "ok")

    assert first.verifier == "trouble.py:Trouble"
    assert first.version.startswith("3+")
    assert first.version != second.version


async def test_text_that_no_message_may_hold_is_replaced(pool: Pool, trouble: dict[str, object]):
    graded = await grade(pool, trouble, "surrogate", "print", target="print")

    assert graded.findings[0].extracted == "?"
    assert graded.findings[1].score == 1.0


SLOW = """
import time
from workers.verifiers.protocol import Verifier, judged

prepared = []


class Slow(Verifier):
    def alone_s(self):
        return 0.8

    def prepare(self):
        time.sleep(1.0)
        prepared.append(True)

    def grade(self, response, target, item):
        if response == "wait":
            until = time.process_time() + 0.25
            while time.process_time() < until:
                pass
            time.sleep(60)
        return judged(bool(prepared), response, response)
"""


async def test_an_answer_is_held_to_the_time_its_verifier_states_and_not_to_what_is_prepared(
    tmp_path: Path,
):
    (tmp_path / "slow.py").write_text(SLOW)
    async with Pool(size=1, deadline_s=0.4, memory_bytes=1 << 30) as pool:
        graded = await grade(pool, {"name": f"{tmp_path}/slow.py:Slow"}, "quick", "wait")

    assert graded.findings[0].score == 1.0
    # Busy for most of the pool's deadline, but not of the time that holds: the machine's fault.
    assert graded.findings[1].status == "timeout"
    assert "within 0.8 s" in graded.findings[1].detail


async def test_every_canary_is_judged_as_it_must_be(pool: Pool):
    assert await canaries.check(pool) >= 10


async def test_a_canary_that_is_judged_differently_stops_the_worker(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Math, "canaries", (Canary(r"\boxed{1}", "2", 1.0),))

    with pytest.raises(GraderBroken, match=r"verifier math.*expected 1\.0"):
        await canaries.check(pool)


async def test_a_verifier_of_ones_own_that_misjudges_its_canary_judges_nothing(
    pool: Pool, tmp_path: Path
):
    (tmp_path / "odd.py").write_text(
        "from workers.verifiers.protocol import Canary, Verifier, judged\n"
        "class Odd(Verifier):\n"
        "    canaries = (Canary('1', '1', 1.0), Canary('2', '1', 0.0))\n"
        "    def grade(self, response, target, item):\n"
        "        return judged(True, response, response)\n"
    )

    graded = await grade(pool, {"name": f"{tmp_path}/odd.py:Odd"}, "1")

    assert "canary" in graded.broken
    assert graded.findings == {}


HOSTILE = [
    r"\boxed{9^{9^{9^{9}}}}", r"\boxed{(10^{10})!}", r"\boxed{\binom{10^{9}}{5 \cdot 10^{8}}}",
    r"\boxed{" + "(" * 3000 + "7" + ")" * 3000 + "}", r"\boxed{" + "9" * 1_000_000 + "}",
    r"\boxed{\sum_{k=1}^{10^{12}} \frac{1}{k}}", r"\boxed{\int_0^{9^{9^9}} x^{x^{x}} dx}",
]  # fmt: skip


async def test_twenty_hostile_answers_leave_ordinary_verdicts_under_a_second(
    trouble: dict[str, object],
):
    async with Pool(size=2, deadline_s=0.4, memory_bytes=1 << 30) as pool:
        guarded = [
            asyncio.create_task(grade(pool, {"name": "math"}, text, target=r"\sqrt{2}"))
            for text in HOSTILE * 3
        ]
        hanging = [asyncio.create_task(grade(pool, trouble, "spin")) for _ in range(20)]
        latencies = []
        for number in range(60):
            started = time.monotonic()
            graded = await grade(pool, {"name": "math"}, f"\\boxed{{{number}}}", target=str(number))
            latencies.append(time.monotonic() - started)
            assert graded.findings[0].score == 1.0
            await asyncio.sleep(0.02)

        verdicts = await asyncio.gather(*guarded, *hanging)

    unrewarded = [v.findings[0] for v in verdicts if v.findings[0].score != 0.0]
    assert unrewarded == []
    assert sorted(latencies)[58] < 1.0


PROGRAMS = [
    "def f(x):\n    return x + 1\n",
    "def f(x):\n    return x\n",
    "def f(x):\n    while True: pass\n",
    "import os\nos._exit(0)\n",
]
CODE = {"name": "code", "seconds": 0.5, "total_seconds": 1.0}


async def test_programs_keep_to_their_own_limits_and_delay_no_other_verdict():
    tests = '[{"expr": "f(1)", "expected": 2}]'
    answers = [f"```python\n{source}```" for source in PROGRAMS]
    # The pool's own deadline is far below what a program may take.
    async with Pool(size=1, deadline_s=0.2, memory_bytes=1 << 30) as pool:
        running = asyncio.create_task(grade(pool, CODE, *answers * 3, target=tests))
        await asyncio.sleep(0.1)
        quick = await asyncio.wait_for(grade(pool, {"name": "exact"}, "a", target="a"), 20)
        assert not running.done()
        graded = await running

    assert quick.findings[0].score == 1.0
    assert [graded.findings[n].score for n in range(12)] == [1.0, 0.0, 0.0, 0.0] * 3
    assert "exceeded 0.5 s" in graded.findings[2].detail


async def test_no_program_outlives_the_pool():
    tests = '[{"expr": "f(1)", "expected": 2}]'
    spec = CODE | {"seconds": 100, "total_seconds": 100}
    before = sandboxed()
    async with Pool(size=1, deadline_s=1.0, memory_bytes=1 << 30) as pool:
        running = asyncio.create_task(
            grade(pool, spec, f"```python\n{PROGRAMS[2]}```", target=tests)
        )
        deadline = time.monotonic() + 30
        while not sandboxed() - before:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        started = sandboxed() - before
        os.kill(pool.nursery_pid(), signal.SIGKILL)
        running.cancel()

    await asyncio.to_thread(wait_until_gone, started)


@pytest.mark.parametrize("name", ["exact", "math"])
async def test_a_grader_that_has_built_a_verifier_judges_the_next_group_alike(name: str):
    async with Pool(size=1, deadline_s=20.0, memory_bytes=1 << 30) as pool:
        first, again = [await grade(pool, {"name": name}, "4", "5", "4", target="4") for _ in "ab"]

    assert [first.findings[i].score for i in range(3)] == [1.0, 0.0, 1.0]
    assert first.version
    assert first.classes.of == {0: 0, 1: 1, 2: 0}
    assert (again.verifier, again.version) == (first.verifier, first.version)
    assert (again.findings, again.classes) == (first.findings, first.classes)
