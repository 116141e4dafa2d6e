"""Decisions as they are recorded: one annotation per generation, with the signals that were read.

A window has hundreds of rows: arrays are turned into lists once, and looked at row by row as those.
Shape legend: B rows of the window, G rows of one group.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import TypeAdapter

from broker.arrays import packed
from broker.messages import Annotation
from workers.policies.batch import Batch
from workers.policies.judged import Judged
from workers.policies.weights import Weights

Lists = Mapping[str, list[float]]
ROWS = TypeAdapter(tuple[Annotation, ...])
"""Validates the rows of a group in one call, which takes half the time of one for each."""


def annotate_window(
    batch: Batch,
    judged: Sequence[Judged],
    advantages_B: np.ndarray,
    weights: Weights,
    reasons_B: Sequence[str],
) -> tuple[tuple[Annotation, ...], ...]:
    """Per group of the batch, per generation. reasons_B: of each usable row, how it was weighed."""
    usable: list[bool] = batch.usable_B.tolist()
    advantages: list[float] = advantages_B.tolist()
    rows: list[float] = weights.rows_B.tolist()
    signals = _lists(weights.signals)
    found: list[tuple[Annotation, ...]] = []
    for number, one in enumerate(judged):
        group, start = one.group, batch.starts[number]
        shared = {"solve_rate": group.solve_rate(), **group.facts}
        rewards: list[float] = one.rewards_G.tolist()
        own = _lists(one.signals)
        annotations: list[Mapping[str, object]] = []
        for row, index in enumerate(group.indices):
            at = start + row
            tokens = weights.tokens[at] if weights.tokens is not None and usable[at] else None
            annotations.append(
                {
                    "index": index,
                    "target": group.target,
                    "target_source": group.target_source,
                    "admitted": usable[at],
                    "reward": rewards[row] if math.isfinite(rewards[row]) else None,
                    "advantage": advantages[at] if usable[at] else 0.0,
                    "weight": rows[at] if usable[at] else 0.0,
                    "token_weights": None if tokens is None else packed(tokens, "<f4"),
                    "reason": reasons_B[at] if usable[at] else group.exclusion(row) or "nonfinite",
                    "signals": {**shared, **_row(own, row), **_row(signals, at)},
                }
            )
        found.append(ROWS.validate_python(tuple(annotations)))
    return tuple(found)


def annotate_dropped(judged: Judged, reason: str) -> tuple[Annotation, ...]:
    """The record of a group that is not trained on."""
    group = judged.group
    shared = {"solve_rate": group.solve_rate(), **group.facts}
    rewards: list[float] = judged.rewards_G.tolist()
    own = _lists(judged.signals)
    return tuple(
        Annotation(
            index=index,
            target=group.target,
            target_source=group.target_source,
            admitted=False,
            reward=rewards[row] if math.isfinite(rewards[row]) else None,
            advantage=0.0,
            weight=0.0,
            reason=reason,
            signals={**shared, **_row(own, row)},
        )
        for row, index in enumerate(group.indices)
    )


def _lists(signals: Mapping[str, np.ndarray]) -> Lists:
    return {name: np.asarray(values, np.float64).tolist() for name, values in signals.items()}


def _row(signals: Lists, at: int) -> dict[str, float]:
    """The finite values of one row."""
    return {name: values[at] for name, values in signals.items() if math.isfinite(values[at])}
