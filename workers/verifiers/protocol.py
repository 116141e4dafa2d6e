"""What a verifier is: a pure function from an answer and a target to a finding. It states facts.

A verifier is a frozen pydantic model whose fields are its options, so that a specification with an unknown
option or a wrong value is refused before anything starts. It runs in a grader process (see pool.py): it may
be slow, hang or crash without harm to anybody but its own answer.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, cast, get_args

from broker.errors import SluiceError
from broker.messages import Json, VerdictStatus
from broker.settings import Settings

EXTRACTED_CHARS = 2_000
"""Longer extracted answers are kept only to this length."""
DETAIL_CHARS = 500


class Ungradable(SluiceError):
    """The target cannot be compared with anything: refuse the item, reward nothing."""


class GraderBroken(SluiceError):
    """Graders cannot be started, or judge a known pair wrongly: no answer may be judged by them."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a verifier found about one answer. Only ok and no_answer carry a score."""

    status: VerdictStatus
    score: float | None
    extracted: str | None = None
    """The answer as it stood in the response."""
    answer_key: str | None = None
    """Canonical text of the answer; equal keys mean the same answer."""
    detail: str = ""
    components: Mapping[str, float] = field(default_factory=dict)


class Canary(NamedTuple):
    """A pair whose score is known; a grader that finds another may judge nothing."""

    response: str
    target: str
    score: float


class Verifier(Settings):
    """Base of all verifiers, also of a user's own. Subclasses add options as fields and define `grade`."""

    version: ClassVar[str] = "1"
    """Changes whenever a verdict may change."""
    canaries: ClassVar[tuple[Canary, ...]] = ()
    """Judged with default options when a worker starts, or when a verifier of one's own is first used."""

    def ready(self) -> None:
        """Raise BadConfiguration when something that it needs is not installed."""

    def prepare(self) -> None:
        """Import what grading needs, beyond any answer's limits. In each grader that is to judge."""

    def program_bytes(self) -> int:
        """Address space that it gives to programs of its own; a grader cannot give more than it has."""
        return 0

    def alone_s(self) -> float:
        """Seconds that one answer may take by the verifier's own limits; then each is judged by itself.

        0: it is quick, and the pool's limits hold. Otherwise the pool waits that long before its own do.
        """
        return 0.0

    def check(self, target: str | None, item: Json) -> None:
        """Raise Ungradable when nothing could ever be compared with this target."""

    def grade(self, response: str, target: str | None, item: Json) -> Finding:
        """Judge one answer. target None: unlabelled, so find the answer and return `ungradable(...)`.

        item: what the sample carries beside its target. An exception is the verifier's fault, never a 0.
        """
        raise TypeError(f"{type(self).__name__}: expected a method grade(response, target, item)")

    def pays_partly(self) -> bool:
        """Whether a wrong answer may score above 0 (never 1), as these options say."""
        return False

    def stated(self, target: str, item: Json) -> str | None:
        """A response that gives the target in the agreed form, for calibration; None: not known."""
        return None

    def same(self, left: str, right: str, item: Json) -> bool | None:
        """Whether two extracted answers with different keys are equivalent; None: undecided."""
        return False


def judged(
    right: bool | float, extracted: str | None, answer_key: str | None, detail: str = ""
) -> Finding:
    """A graded answer."""
    return Finding("ok", float(right), extracted, answer_key, detail)


def shares_sum(paid: Iterable[float]) -> float:
    """A sum of shares, of which all make exactly 1: what floats leave over or short is no loss of score."""
    return min(round(math.fsum(paid), 12), 1.0)


def no_answer(detail: str) -> Finding:
    """Nothing in the agreed form was found: 0."""
    return Finding("no_answer", 0.0, detail=detail)


def ungradable(detail: str, extracted: str | None = None, answer_key: str | None = None) -> Finding:
    """The target is missing or unusable: no reward; the answer is still told."""
    return Finding("ungradable", None, extracted, answer_key, detail)


def verifier_error(detail: str) -> Finding:
    """The verifier itself failed: no reward."""
    return Finding("verifier_error", None, detail=detail)


def checked(finding: object) -> Finding:
    """A finding that may travel: of the right type, score within 0..1 exactly where a score belongs."""
    if not isinstance(finding, Finding):
        return verifier_error(f"grade returned {type(finding).__name__}; expected a Finding")
    if finding.status not in get_args(VerdictStatus):
        return verifier_error(f"status {finding.status!r}; expected one of {VerdictStatus}")
    problem = _score_problem(finding) or _text_problem(finding)
    return verifier_error(problem) if problem else finding


def _score_problem(finding: Finding) -> str:
    score = cast(object, finding.score)
    if finding.status not in ("ok", "no_answer"):
        return "" if score is None else f"score {score!r} with status {finding.status}"
    if not isinstance(score, int | float) or not 0.0 <= score <= 1.0:
        return f"score {score!r} with status {finding.status}; expected a number within 0..1"
    bad = [
        name
        for name, value in finding.components.items()
        if not isinstance(value, int | float) or not math.isfinite(value)
    ]
    return f"component {bad[0]!r} is {finding.components[bad[0]]!r}" if bad else ""


def _text_problem(finding: Finding) -> str:
    for name in ("extracted", "answer_key", "detail"):
        value = getattr(finding, name)
        if not isinstance(value, str | None):
            return f"{name} is {type(value).__name__}; expected text"
    return ""
