"""Before a campaign: does a source's verifier pay for right answers and only for those?

Needs no model. The gold of each item is put into the agreed form (its worked solution, or the verifier's own
spelling of the target) and must score 1; another item's gold in its place must score 0, or below 1 where the
verifier pays partly. A grader that raises is counted, and never a 0.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from broker.messages import Json, Sample
from workers.verifiers import registry
from workers.verifiers.pool import Pool
from workers.verifiers.protocol import Finding, Ungradable

ITEMS = 30
LEAST_PARSED = 0.9
LEAST_AGREEING = 0.95


@dataclass(frozen=True)
class Case:
    """A response whose score is known."""

    sample: Sample
    response: str
    right: bool


@dataclass
class Calibration:
    """What was found about one source."""

    domain: str
    verifiers: tuple[str, ...]
    gold: int = 0
    """Gold answers judged."""
    gold_right: int = 0
    parsed: int = 0
    wrong: int = 0
    """Answers judged that are known to be wrong."""
    wrong_paid: int = 0
    unknown: int = 0
    """Items whose gold nobody can state as a response."""
    faults: Counter[str] = field(default_factory=Counter)
    """Statuses that carry no reward."""
    compared: int = 0
    agreeing: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """Why a run with this source is blocked; empty: it is not."""
        checks = {
            "no gold answer could be stated": not self.gold,
            f"{self.gold - self.gold_right} of {self.gold} gold answers do not score 1": (
                self.gold_right < self.gold
            ),
            f"{self.wrong_paid} of {self.wrong} wrong answers are paid": self.wrong_paid > 0,
            f"parse rate {_share(self.parsed, self.gold):.2f} is below {LEAST_PARSED}": (
                _share(self.parsed, self.gold) < LEAST_PARSED
            ),
            f"graders fail: {dict(self.faults)}": bool(self.faults),
            f"training and evaluation graders agree on {_share(self.agreeing, self.compared):.2f}, "
            f"below {LEAST_AGREEING}": _share(self.agreeing, self.compared) < LEAST_AGREEING,
        }
        return [reason for reason, holds in checks.items() if holds]


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def stated(sample: Sample, solution: str | None) -> str | None:
    """The sample's gold as a response."""
    if sample.target is None:
        return None
    if solution is not None:
        return solution
    try:
        with registry.users_code(f"{sample.key}: stated"):
            return registry.build(sample.verifier).stated(sample.target, sample.options)
    except Ungradable:
        return None


def cases(samples: Sequence[tuple[Sample, str | None]]) -> tuple[list[Case], int]:
    """(right and wrong responses, how many items give none). samples: with their worked solutions.

    A wrong response to an item is the gold of the next item that has another; it follows the right one.
    """
    known = [(sample, stated(sample, solution)) for sample, solution in samples]
    found: list[Case] = []
    for place, (sample, response) in enumerate(known):
        if response is None:
            continue
        found.append(Case(sample, response, True))
        others = (*known[place + 1 :], *known[:place])
        wrong = next((r for s, r in others if r is not None and s.target != sample.target), None)
        if wrong is not None:
            found.append(Case(sample, wrong, False))
    return found, sum(response is None for _, response in known)


async def first_paid(pool: Pool, samples: Sequence[tuple[Sample, str | None]]) -> tuple[bool, str]:
    """(whether a gold answer scores 1, what the first one got); true as well where none can be stated."""
    reason = ""
    for sample, solution in samples:
        response = stated(sample, solution)
        if response is None:
            continue
        graded = await pool.grade(sample.verifier, sample.target, {0: response}, sample.options)
        if graded.broken:
            return False, graded.broken
        finding = graded.findings[0]
        if finding.score == 1.0:
            return True, ""
        reason = reason or (
            f"{sample.key}: {response[-60:]!r} to target {sample.target!r:.40}: "
            f"{finding.status}, score {finding.score} ({finding.detail})"
        )
    return not reason, reason


async def calibrate(
    pool: Pool,
    domain: str,
    train: Sequence[tuple[Sample, str | None]],
    held_out: Sequence[tuple[Sample, str | None]],
) -> Calibration:
    """Judge known answers to both kinds of items; where their verifiers differ, by either."""
    specs = _distinct([sample.verifier for sample, _ in (*train, *held_out)])
    result = Calibration(domain, tuple(str(spec["name"]) for spec in specs))
    for samples in (train, held_out):
        found, unknown = cases(samples)
        result.unknown += unknown
        gold_key = None
        for case in found:
            finding = await _judged(pool, case, case.sample.verifier)
            if case.right:
                gold_key = finding.answer_key
            elif gold_key is not None and finding.answer_key == gold_key:
                # Another spelling of the same answer, which is no wrong one.
                continue
            _count(result, case, finding)
            for other in specs:
                if other != case.sample.verifier:
                    second = await _judged(pool, case, other)
                    result.compared += 1
                    result.agreeing += second.score == finding.score
    return result


def _distinct(specs: Sequence[Json]) -> list[Json]:
    found: list[Json] = []
    for spec in specs:
        if spec not in found:
            found.append(spec)
    return found


async def _judged(pool: Pool, case: Case, spec: Json) -> Finding:
    graded = await pool.grade(spec, case.sample.target, {0: case.response}, case.sample.options)
    if graded.broken:
        return Finding("verifier_error", None, detail=graded.broken)
    return graded.findings[0]


def _count(result: Calibration, case: Case, finding: Finding) -> None:
    if finding.score is None:
        result.faults[finding.status] += 1
    if case.right:
        result.gold += 1
        result.gold_right += finding.score == 1.0
        result.parsed += finding.status == "ok"
        surprising = finding.score != 1.0
    else:
        result.wrong += 1
        with registry.users_code("pays_partly"):
            partly = registry.build(case.sample.verifier).pays_partly()
        surprising = finding.score == 1.0 if partly else finding.score not in (None, 0.0)
        result.wrong_paid += surprising
    if surprising and len(result.examples) < 5:
        kind = "gold" if case.right else "wrong"
        result.examples.append(
            f"{case.sample.key}: {kind} answer {case.response[-60:]!r} to target "
            f"{case.sample.target!r:.40}: {finding.status}, score {finding.score} ({finding.detail})"
        )
