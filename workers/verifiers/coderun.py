"""One program through its tests: what the checker saw of each."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from workers.verifiers.codetests import Test
from workers.verifiers.sandbox import plain
from workers.verifiers.sandbox.limits import Limits
from workers.verifiers.sandbox.process import Program, Raised, Stopped


@dataclass
class Report:
    """What the checker has seen of each test, by id."""

    loaded: bool = False
    passed: set[str] = field(default_factory=set)
    typed: set[str] = field(default_factory=set)
    reason: str = ""
    """Why the first test that failed did."""

    def share(self, seen: set[str], tests: Sequence[Test]) -> float:
        """Of all expected tests: one that did not report counts as failed."""
        return sum(test.id in seen for test in tests) / len(tests)

    def failed(self, test: Test, reason: str) -> None:
        self.reason = self.reason or f"test {test.id}: {reason}"


class Run:
    """One answer through all its tests."""

    def __init__(
        self,
        source: str,
        tests: Sequence[Test],
        limits: Limits,
        *,
        total_s: float,
        tolerance: float,
        all_or_nothing: bool,
    ) -> None:
        """all_or_nothing: stop at the first test that fails."""
        self._source = source
        self._tests = tests
        self._limits = limits
        self._total_s = total_s
        self._used_s = 0.0
        self._tolerance = tolerance
        self._all_or_nothing = all_or_nothing
        self._report = Report()

    def report(self) -> Report:
        asked = [test for test in self._tests if test.kind == "ask"]
        while asked and not self._over():
            asked = self._ask(asked)
        for test in self._tests:
            if test.kind == "program" and not self._over():
                self._program(test)
        return self._report

    def _over(self, using_s: float = 0.0) -> bool:
        """Whether nothing more can change the score, or no time is left."""
        late = self._used_s + using_s >= self._total_s
        if late and not self._report.reason:
            self._report.reason = f"exceeded {self._total_s:g} s in all"
        hopeless = self._all_or_nothing or not self._report.loaded
        return late or (hopeless and bool(self._report.reason))

    def _ask(self, tests: Sequence[Test]) -> list[Test]:
        """Run tests in one program; those that are left when it stops."""
        report = self._report
        left = list(tests)
        with Program(self._source, "calls", self._limits) as program:
            try:
                problem = program.compiled() or program.loaded()
                if problem:
                    report.reason = report.reason or problem
                    return []
                report.loaded = True
                while left and not self._over(program.used_s):
                    self._one(program, left[0])
                    left.pop(0)
            except Stopped as stopped:
                # While loading it is the whole program's end, later one test's.
                report.failed(left.pop(0), str(stopped))
                left = left if report.loaded else []
            finally:
                self._used_s += program.used_s
        return left

    def _one(self, program: Program, test: Test) -> None:
        fits, agrees, reason = True, True, ""
        for request, expected in zip(test.requests, test.expected, strict=True):
            try:
                found = program.ask(request)
            except Raised as raised:
                self._report.failed(test, str(raised))
                return
            fits = fits and _kind(found) == _kind(expected)
            if not plain.same(expected, found, tolerance=self._tolerance, loose=test.loose):
                agrees, reason = False, f"gave {_shown(found)}"
                break
        self._tell(test, fits, agrees, reason)

    def _program(self, test: Test) -> None:
        report = self._report
        with Program(self._source, "program", self._limits) as program:
            try:
                problem = program.compiled()
                if problem:
                    report.failed(test, problem)
                    return
                report.loaded = True
                found = program.run(test.requests[0]["stdin"])
            except Stopped as stopped:
                report.failed(test, str(stopped))
                return
            finally:
                self._used_s += program.used_s
        expected = str(test.expected[0])
        agrees = plain.same_text(expected, found, tolerance=self._tolerance)
        self._tell(test, bool(found.strip()), agrees, f"printed {found[-80:]!r}")

    def _tell(self, test: Test, fits: bool, agrees: bool, reason: str) -> None:
        if fits:
            self._report.typed.add(test.id)
        if agrees:
            self._report.passed.add(test.id)
        else:
            self._report.failed(test, reason)


def _shown(value: object) -> str:
    try:
        return repr(value)[:80]
    except ValueError:
        # An integer too long to be written out.
        return f"a {type(value).__name__} too large to show"


def _kind(value: object) -> str:
    """The type that JSON knows: lists and tuples are one."""
    return "list" if type(value) in (list, tuple) else type(value).__name__
