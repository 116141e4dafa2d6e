"""Code: the last fenced Python block, run in the sandbox, its results compared outside.

An answer passes a test only by the value it gives for that input: the expected value never enters the
sandbox, each reply must carry the token of its request, and every test must have reported. How the program
ends, what it prints besides, and what it does to its own process count for nothing.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from broker.errors import BadConfiguration
from broker.messages import Json
from workers.verifiers import codetests, codetext
from workers.verifiers.coderun import Report, Run
from workers.verifiers.codetests import Test
from workers.verifiers.protocol import (
    Canary,
    Finding,
    Verifier,
    judged,
    no_answer,
    shares_sum,
    ungradable,
    verifier_error,
)
from workers.verifiers.sandbox.limits import START_S, Limits
from workers.verifiers.sandbox.process import Program, SandboxBroken, Starved, Stopped

SOURCE_CHARS = 100_000
EACH_START_S = 0.2
"""For one sandbox of many to come up on a busy machine: whole programs have one for each test."""
_ADD = '[{"expr": "add(2, 3)", "expected": 5}]'


class Code(Verifier):
    """Programs in Python, without packages, processes, threads or network. Tests: the item's `tests`."""

    version: ClassVar[str] = "2"
    canaries: ClassVar = (
        Canary("```python\ndef add(a, b):\n    return a + b\n```", _ADD, 1.0),
        Canary("```python\nimport os\nos._exit(0)\n```", _ADD, 0.0),
    )

    entry: str | None = None
    """The function to call, `name` or `Class.method`, where neither item nor test says."""
    score: Literal["all", "fraction", "staged"] = "all"
    """1 when all tests pass; the share that passes; or shares for syntax, types and tests."""
    stages: tuple[float, float, float] = (0.1, 0.2, 0.7)
    """Of `staged`: it compiles and loads; share of results of the expected type; share of tests passed."""
    seconds: Annotated[float, Field(gt=0, le=600)] = 2.0
    """Of its own time for one input."""
    total_seconds: Annotated[float, Field(gt=0, le=3600)] = 10.0
    """Of its own time for all tests."""
    memory_bytes: Annotated[int, Field(ge=64 * 1024 * 1024)] = 512 * 1024 * 1024
    output_bytes: Annotated[int, Field(ge=1024, le=64 * 1024 * 1024)] = 1024 * 1024
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """For floats, absolute and relative. 0: equal to the last bit."""

    @model_validator(mode="after")
    def _stages_are_shares(self) -> Self:
        if min(self.stages) < 0 or abs(sum(self.stages) - 1) > 1e-9:
            raise ValueError(f"stages {self.stages}: expected shares with sum 1")
        return self

    def ready(self) -> None:
        _try_sandbox()

    def program_bytes(self) -> int:
        return self.memory_bytes

    def alone_s(self) -> float:
        starts_s = 2 * START_S + EACH_START_S * codetests.MAX_TESTS
        return self.total_seconds + self.seconds + starts_s

    def check(self, target: str | None, item: Json) -> None:
        if target is not None or "tests" in item:
            codetests.read(item, target, self.entry)

    def pays_partly(self) -> bool:
        return self.score != "all"

    def grade(self, response: str, target: str | None, item: Json) -> Finding:
        source, problem = codetext.last_block(response.rpartition("</think>")[2])
        if source is None:
            return no_answer(problem)
        key = codetext.key(source)
        if target is None and "tests" not in item:
            return ungradable("no tests", source, key)
        tests = codetests.read(item, target, self.entry)
        if len(source) > SOURCE_CHARS:
            return judged(
                False, source, key, f"{len(source)} characters; the limit is {SOURCE_CHARS}"
            )
        try:
            report = Run(
                source,
                tests,
                self.limits(),
                total_s=self.total_seconds,
                tolerance=self.tolerance,
                all_or_nothing=self.score == "all",
            ).report()
        except Starved as error:
            return Finding("timeout", None, source, key, str(error))
        except SandboxBroken as error:
            return verifier_error(str(error))
        return self._finding(report, tests, source, key)

    def limits(self) -> Limits:
        # Processor time is a net below the limits that are watched from outside.
        cpu_seconds = int(self.total_seconds) + 2
        return Limits(self.seconds, cpu_seconds, self.memory_bytes, self.output_bytes)

    def _finding(self, report: Report, tests: Sequence[Test], source: str, key: str) -> Finding:
        passed, typed = report.share(report.passed, tests), report.share(report.typed, tests)
        loaded = float(report.loaded)
        if self.score == "all":
            score = float(passed == 1.0)
        elif self.score == "fraction":
            score = passed
        else:
            syntax, types, values = self.stages
            score = shares_sum((syntax * loaded, types * typed, values * passed))
        components = {"loaded": loaded, "typed": typed, "passed": passed}
        return Finding("ok", score, source, key, report.reason, components)


@lru_cache(maxsize=1)
def _try_sandbox() -> None:
    """BadConfiguration when no sandbox can be made here: many machines forbid it to all but root.

    Only success is remembered: a machine that was too busy may not be so again.
    """
    try:
        with Program("", "program", Code().limits()) as program:
            program.compiled()
    except (SandboxBroken, Stopped, Starved) as error:
        raise BadConfiguration(
            f"verifier code: bubblewrap does not work on this machine: {error}"
        ) from error
