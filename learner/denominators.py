"""What the summed token losses of a step are divided by: named options, over the whole step.

L = sum over rows k and tokens t of m_k w_kt l_kt / Z (METHODS 0.3). Z is counted once per optimizer
step, over all rows and all micro-batches, so the split into micro-batches changes nothing.
"""

from collections.abc import Callable, Sequence

import numpy as np

from learner.batch import Row


def all_tokens(rows: Sequence[Row]) -> np.ndarray:
    """Z = tokens of all rows, masked ones included: masking rows shrinks the step."""
    return _everywhere(rows, sum(row.tokens for row in rows))


def kept_tokens(rows: Sequence[Row]) -> np.ndarray:
    """Z = tokens of the rows with a weight above 0."""
    return _everywhere(rows, sum(row.tokens for row in rows if row.weight > 0))


def sequences(rows: Sequence[Row]) -> np.ndarray:
    """Z = number of rows, masked ones included: a token sum per answer."""
    return _everywhere(rows, len(rows))


def seq_mean(rows: Sequence[Row]) -> np.ndarray:
    """Mean over all rows of their token means (GRPO as first published)."""
    return np.array([1.0 / (max(row.tokens, 1) * len(rows)) for row in rows])


def fixed(rows: Sequence[Row]) -> np.ndarray:
    """Z = rows times the most tokens an answer may have (Dr. GRPO, arXiv:2503.20783)."""
    return np.array([1.0 / (row.max_tokens * len(rows)) for row in rows])


def _everywhere(rows: Sequence[Row], total: int) -> np.ndarray:
    return np.full(len(rows), 1.0 / max(total, 1))


DENOMINATORS: dict[str, Callable[[Sequence[Row]], np.ndarray]] = {
    "all_tokens": all_tokens,
    "kept_tokens": kept_tokens,
    "sequences": sequences,
    "seq_mean": seq_mean,
    "fixed": fixed,
}
"""Name to function: rows of the step -> (B,) float64, what each token loss of a row is multiplied by."""
