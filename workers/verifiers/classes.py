"""Equivalence classes within a group: each answer is compared with one representative per class only.

Under a budget of comparisons and seconds. A pair that stays unresolved stays apart and is flagged, so that
agreement may be understated, never invented.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from broker.messages import Json
from workers.verifiers.protocol import Verifier

MAX_COMPARISONS = 256
"""Per group: 22 answers that all differ need 231."""


@dataclass(frozen=True)
class Answer:
    index: int
    extracted: str
    key: str


@dataclass(frozen=True)
class Classes:
    of: dict[int, int]
    """Class per answer index, numbered from 0 in order of first appearance."""
    unresolved: tuple[int, ...]
    """Answers with at least one comparison that was not made or not decided."""


def by_key(answers: Sequence[Answer], *, resolved: bool) -> Classes:
    """Answers with equal keys together; resolved says whether different keys are known to differ."""
    numbers: dict[str, int] = {}
    of = {answer.index: numbers.setdefault(answer.key, len(numbers)) for answer in answers}
    settled = resolved or len(numbers) < 2
    return Classes(of, () if settled else tuple(of))


def classify(
    verifier: Verifier,
    answers: Sequence[Answer],
    item: Json,
    *,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Classes:
    """Group the answers of one group by key, then by `verifier.same` against representatives."""
    if type(verifier).same is Verifier.same:
        return by_key(answers, resolved=True)
    started = clock()
    representatives: list[Answer] = []
    class_of_key: dict[str, int] = {}
    open_keys: set[str] = set()
    comparisons = 0
    for answer in answers:
        if answer.key in class_of_key:
            continue
        found: int | None = None
        for number, representative in enumerate(representatives):
            if comparisons >= MAX_COMPARISONS or clock() - started > seconds:
                open_keys.add(answer.key)
                break
            comparisons += 1
            same = verifier.same(representative.extracted, answer.extracted, item)
            if same:
                found = number
                break
            if same is None:
                open_keys.add(answer.key)
        if found is None:
            found = len(representatives)
            representatives.append(answer)
        else:
            open_keys.discard(answer.key)
        class_of_key[answer.key] = found
    of = {answer.index: class_of_key[answer.key] for answer in answers}
    return Classes(of, tuple(a.index for a in answers if a.key in open_keys))
