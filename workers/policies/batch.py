"""The admitted groups of a window as flat rows, for decisions of window scope.

Shape legend: B rows of the window, groups one after the other; G rows of one group; T tokens.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np

from broker.messages import Json
from workers.policies.group import Group


@dataclass(frozen=True, eq=False)
class Batch:
    """What advantages and weights are computed from."""

    groups: tuple[Group, ...]
    starts: tuple[int, ...]
    """First row of each group, and the number of rows at the end."""
    rewards_B: np.ndarray
    """After shaping, float64; 0 in unusable rows."""
    usable_B: np.ndarray
    """bool; an unusable row gets advantage 0 and weight 0 whatever a method says."""
    lengths_B: np.ndarray
    """Tokens, int64."""
    window: int = 0
    """Its number: what seeded choices are drawn from."""
    memory: Json = field(default_factory=dict[str, object])
    """Of the weight method, from window to window; JSON values."""

    def __len__(self) -> int:
        return len(self.rewards_B)

    def rows(self, group: int) -> slice:
        return slice(self.starts[group], self.starts[group + 1])

    def group_of_rows(self) -> np.ndarray:
        """Number of the group each row belongs to, (B,) int64."""
        return np.repeat(np.arange(len(self.groups)), np.diff(self.starts))

    def logprobs(self) -> list[np.ndarray]:
        """B arrays of (T,)."""
        return [logprobs_T for group in self.groups for logprobs_T in group.logprobs]

    def token_signal(self, name: str) -> list[np.ndarray]:
        """B arrays of (T,), float32; NaN where the engine measured none."""
        return [
            found
            if (found := signals.get(name)) is not None and found.shape == (length,)
            else np.full(length, np.nan, np.float32)
            for group in self.groups
            for signals, length in zip(group.signals, group.lengths_G.tolist(), strict=True)
        ]


def make_batch(groups: Sequence[Group], rewards: Sequence[np.ndarray]) -> Batch:
    """Groups with their rewards, (G,) each; NaN marks a row without one."""
    sizes = [group.size for group in groups]
    rewards_B = np.concatenate([*rewards, np.zeros(0)])
    usable_B = np.concatenate([*(g.usable_G for g in groups), np.zeros(0, bool)])
    usable_B = usable_B & np.isfinite(rewards_B)
    return Batch(
        groups=tuple(groups),
        starts=tuple(int(n) for n in np.cumsum([0, *sizes])),
        rewards_B=np.where(usable_B, rewards_B, 0.0),
        usable_B=usable_B,
        lengths_B=np.concatenate([*(g.lengths_G for g in groups), np.zeros(0, np.int64)]),
    )


def per_group(batch: Batch, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Apply a (G,) -> (G,) function to the usable rewards of each group; (B,), 0 elsewhere."""
    out_B = np.zeros(len(batch))
    if batch.usable_B.all():
        for start, end in pairwise(batch.starts):
            if end > start:
                out_B[start:end] = function(batch.rewards_B[start:end])
        return out_B
    for number in range(len(batch.groups)):
        rows = np.arange(batch.starts[number], batch.starts[number + 1])
        rows = rows[batch.usable_B[rows]]
        if len(rows):
            out_B[rows] = function(batch.rewards_B[rows])
    return out_B


class EndToEnd(list[np.ndarray]):
    """Rows that are views of one array, so that one call of numpy serves them all.

    Who is given it may write in it.
    """

    def __init__(self, tokens: np.ndarray, lengths: Iterable[int]) -> None:
        """tokens: all rows one after the other."""
        self.tokens = tokens
        ends = accumulate(lengths, initial=0)
        super().__init__(tokens[start:end] for start, end in pairwise(ends))


def end_to_end(rows: Sequence[np.ndarray]) -> EndToEnd:
    """A copy of all rows, unless they lie so already."""
    if isinstance(rows, EndToEnd):
        return rows
    tokens = np.concatenate(rows) if rows else np.empty(0, np.float32)
    return EndToEnd(tokens, map(len, rows))
