"""A verified group as the stages see it: numpy arrays, one row per generation.

Rows that cannot be trusted are excluded here and nowhere else: no token, a log-probability that is
not finite, or no score. Statistics are taken over the other rows (P1, P2).

Shape legend: G generations of one group, T tokens of one generation.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from broker.arrays import unpack
from broker.messages import Generation, GroupVerified, Verdict

SUCCESS = 1.0
"""The score that counts as solved, for every verifier unless its specification says `success` (P9)."""
SLACK = 1e-9


@dataclass(frozen=True, eq=False)
class Group:
    """One group's measurements and, as the stages go on, what they decided."""

    group_id: str
    domain: str
    sample_key: str
    difficulty: float | None
    visit: int
    """How often its sample was drawn before: passes over the source."""
    attempt: int
    success: float
    indices: tuple[int, ...]
    outcomes_G: np.ndarray
    """Raw verifier score, float64; NaN without one. Never changed: solve rates are taken from it."""
    scores_G: np.ndarray
    """Score against the target in force, float64; the raw one for a gold target."""
    sound_G: np.ndarray
    """Whether the tokens can be trained on, bool."""
    lengths_G: np.ndarray
    """Tokens, int64."""
    truncated_G: np.ndarray
    """Cut off at the token limit, bool."""
    classes_G: np.ndarray
    """Equivalence class of the answer, int64; -1 without an answer."""
    answers: tuple[str | None, ...]
    """Canonical answers, comparable across groups and visits."""
    components: tuple[Mapping[str, float], ...]
    """What the verifier measured beside the score."""
    logprobs: tuple[np.ndarray, ...]
    """Of the sampled tokens, float32, (T,) each."""
    target: str | None
    signals: tuple[Mapping[str, np.ndarray], ...] = ()
    """Per generation, what the engine measured because a method needs it; shapes are the signal's."""
    target_source: str = "gold"
    facts: Mapping[str, float] = field(default_factory=dict[str, float])
    """What stages with a memory know about this visit."""

    @property
    def size(self) -> int:
        return len(self.indices)

    @property
    def usable_G(self) -> np.ndarray:
        """Rows that may be rewarded and trained on, bool."""
        return self.sound_G & np.isfinite(self.scores_G)

    def successes(self) -> tuple[int, int]:
        """(c, K): solved rows and usable rows, on the raw outcome, as integers (P8, P9)."""
        return self._successes

    @cached_property  # several stages ask
    def _successes(self) -> tuple[int, int]:
        graded_G = self.sound_G & np.isfinite(self.outcomes_G)
        solved_G = self.outcomes_G[graded_G] >= self.success - SLACK
        return int(solved_G.sum()), int(graded_G.sum())

    def solve_rate(self) -> float:
        """q_g; 0 when no row is graded."""
        solved, graded = self.successes()
        return solved / graded if graded else 0.0

    def exclusion(self, row: int) -> str:
        """Why a row is left out; empty when it is not."""
        if self.lengths_G[row] == 0:
            return "empty"
        if not self.sound_G[row]:
            return "nonfinite"
        return "" if np.isfinite(self.scores_G[row]) else "ungraded"

    def with_target(self, target: str | None, source: str, scores_G: np.ndarray) -> "Group":
        if (target, source) == (self.target, self.target_source) and scores_G is self.scores_G:
            return self
        return replace(self, target=target, target_source=source, scores_G=scores_G)


def from_event(event: GroupVerified) -> Group:
    """The arrays of an `ok` group. ValueError names what does not fit."""
    request = event.request
    if request is None:
        raise ValueError("malformed: no request")
    generations = event.generations
    indices = tuple(g.index for g in generations)
    if len(set(indices)) != len(indices) or not all(i < request.size for i in indices):
        raise ValueError(f"malformed: generation indices {indices} for a size of {request.size}")
    verdicts = {v.index: v for v in event.verdicts}
    if len(verdicts) != len(event.verdicts) or not set(verdicts) <= set(indices):
        raise ValueError(
            f"malformed: verdicts {[v.index for v in event.verdicts]} for generations {indices}"
        )
    found = [verdicts.get(i) for i in indices]
    outcomes_G = np.array([_score(v) for v in found], dtype=np.float64)
    logprobs = tuple(unpack(g.logprobs) for g in generations)
    success = request.sample.verifier.get("success", SUCCESS)
    return Group(
        group_id=event.group.group_id,
        domain=event.group.domain,
        sample_key=request.sample.key,
        difficulty=request.sample.difficulty,
        visit=request.pass_no,
        attempt=request.attempt,
        success=float(success) if isinstance(success, int | float) else SUCCESS,
        indices=indices,
        outcomes_G=outcomes_G,
        scores_G=outcomes_G,
        sound_G=np.array(
            [_is_sound(g, lp) for g, lp in zip(generations, logprobs, strict=True)], bool
        ),
        lengths_G=np.array([len(lp) for lp in logprobs], dtype=np.int64),
        truncated_G=np.array([g.finish_reason == "length" for g in generations], dtype=bool),
        classes_G=np.array([_answer_class(v) for v in found], dtype=np.int64),
        answers=tuple(v.answer_key if v else None for v in found),
        components=tuple(v.components if v else {} for v in found),
        logprobs=logprobs,
        target=request.sample.target,
        signals=tuple(_signals(g) for g in generations),
    )


def readable(event: GroupVerified) -> Group | str:
    """A group as the program takes it, or how its message is malformed."""
    try:
        return from_event(event)
    except ValueError as error:
        return str(error)


def _signals(generation: Generation) -> Mapping[str, np.ndarray]:
    return {name: unpack(values) for name, values in generation.signals.items()}


def _score(verdict: Verdict | None) -> float:
    return np.nan if verdict is None or verdict.score is None else verdict.score


def _answer_class(verdict: Verdict | None) -> int:
    return -1 if verdict is None or verdict.answer_class is None else verdict.answer_class


def _is_sound(generation: Generation, logprobs_T: np.ndarray) -> bool:
    if not len(generation.token_ids):
        return False
    # A finite sum of squares has finite terms; one that is not may have overflowed.
    return math.isfinite(logprobs_T.dot(logprobs_T)) or bool(np.isfinite(logprobs_T).all())
