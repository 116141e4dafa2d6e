"""Same weights, same tokens: trainer and engine must agree, or every ratio is wrong from the first step on.

Asked before the first step of each life is planned, of the tokens that were sampled by just the weights the
trainer holds. Outside the band nothing is trained; the message names the likely cause.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from broker.errors import BadConfiguration
from learner.batch import Row
from learner.trainer import Trainer

BANDS = {"float32": 0.02, "bfloat16": 0.1}
"""Default band by the computation's type. In bfloat16 7 to 8 % of ratios lie outside [0.9, 1.1] between two
correct implementations (trl#6789), so an alarm needs a band, not equality."""
MAX_TOKENS = 4096
"""Prompt and answer tokens looked at; more say nothing new."""


class NotIdentical(BadConfiguration):
    """Trainer and engine give different probabilities for the same weights."""


@dataclass(frozen=True)
class Agreement:
    """How far apart the two are on `tokens` answer tokens."""

    tokens: int
    gap: float
    """Mean |log trainer - log engine|, nats."""
    worst: float


def comparable(rows: Sequence[Row]) -> list[Row]:
    """Rows sampled by the trainer's own weights to the last token, no more of them than MAX_TOKENS."""
    found: list[Row] = []
    budget = MAX_TOKENS
    for row in rows:
        fresh = (
            row.tokens > 0 and not row.ages().any() and np.isfinite(row.rollout_logprobs_T).all()
        )
        if fresh and (row.length <= budget or not found):
            found.append(row)
            budget -= row.length
    return found


def agreement(trainer: Trainer, rows: Sequence[Row]) -> Agreement:
    """Of rows as `comparable` gives them."""
    gaps = np.abs(_scored(trainer, rows) - _engine(rows))
    return Agreement(len(gaps), float(gaps.mean()), float(gaps.max()))


def check(trainer: Trainer, rows: Sequence[Row], band: float) -> Agreement:
    """Raises NotIdentical outside the band."""
    found = agreement(trainer, rows)
    # NaN is outside every band.
    if not found.gap <= band:
        raise NotIdentical(
            f"identity check: trainer and engine differ by {found.gap:.4g} nats a token on average "
            f"(worst {found.worst:.4g}) over {found.tokens} tokens of the same weights; expected at most "
            f"learner.identity_band {band:g}. Likely cause: {likely_cause(trainer, rows, band)}"
        )
    return found


def likely_cause(trainer: Trainer, rows: Sequence[Row], band: float) -> str:
    """The explanation that would bring the gap into the band, or what the differences look like."""
    engine_N, ours_N = _engine(rows), _scored(trainer, rows)
    explanations: list[tuple[str, Callable[[], np.ndarray]]] = [
        (
            "the engine reports log-probabilities of temperature 1, not of the distribution sampled from",
            lambda: _scored(trainer, [replace(row, temperature=1.0) for row in rows]),
        ),
        (
            "the engine divides log-probabilities by the temperature instead of dividing the logits",
            lambda: (
                _scored(trainer, [replace(row, temperature=1.0) for row in rows])
                / np.repeat([row.temperature for row in rows], [row.tokens for row in rows])
            ),
        ),
    ]
    for cause, score in explanations:
        if np.abs(score() - engine_N).mean() <= band:
            return cause
    for shift, side in ((1, "one token late"), (-1, "one token early")):
        if _shifted_gap(rows, ours_N, engine_N, shift) <= band:
            return f"the engine's log-probabilities are aligned {side}"
    return _shape(rows, engine_N - ours_N, band)


def _shifted_gap(
    rows: Sequence[Row], ours_N: np.ndarray, engine_N: np.ndarray, shift: int
) -> float:
    """Mean gap within rows when the engine's values are moved by one token."""
    ends = np.cumsum([row.tokens for row in rows])[:-1]
    gaps = [
        np.abs(a[:-1] - b[1:]) if shift > 0 else np.abs(a[1:] - b[:-1])
        for a, b in zip(np.split(ours_N, ends), np.split(engine_N, ends), strict=True)
    ]
    joined = np.concatenate(gaps)
    return float(joined.mean()) if len(joined) else float("inf")


def _shape(rows: Sequence[Row], differences_N: np.ndarray, band: float) -> str:
    last_N = np.zeros(len(differences_N), bool)
    last_N[np.cumsum([row.tokens for row in rows]) - 1] = True
    if not np.isfinite(differences_N).all():
        return "the trainer's log-probabilities are not finite: broken weights or overflow"
    if (~last_N).any() and np.abs(differences_N[~last_N]).mean() <= band:
        return "only last tokens differ: the end token is treated differently on the two sides"
    if (differences_N > -1e-3).mean() > 0.99:
        return (
            "the engine's values are larger throughout: it samples from a truncated distribution "
            "(top_p, top_k or min_p)"
        )
    if np.abs(differences_N.mean()) < 0.2 * np.abs(differences_N).mean() and (
        np.abs(differences_N).mean() < 0.3
    ):
        return (
            "differences of both signs and no pattern: lower precision on one side (model.dtype); "
            "use the same type, or state a wider band"
        )
    return (
        "other weights, another tokenizer, or another position of the prompt on one side: compare the "
        "digest of the weights and the prompt's token ids"
    )


def _engine(rows: Sequence[Row]) -> np.ndarray:
    return np.concatenate([row.rollout_logprobs_T for row in rows]).astype(np.float64)


def _scored(trainer: Trainer, rows: Sequence[Row]) -> np.ndarray:
    return np.concatenate([part.cpu().numpy() for part in trainer.logprobs(rows)]).astype(
        np.float64
    )
