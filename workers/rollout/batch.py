"""The answers in progress: rows of tensors that advance together, one token a step.

Rows in use are 0..count-1. When some end, the last ones move into their places, in the cache too, so
that every tensor operation works on one plain slice. Nothing here is done token by token in Python.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from broker.messages import Sampling
from workers.rollout.enlarge import enlarged
from workers.rollout.kv_cache import KvCache
from workers.rollout.runs import Run, runs_of
from workers.rollout.sampling import choose

# Columns of the integer state: the token to feed next, its position, how many tokens are sampled,
# how many may be, and the seed.
TOKEN, POSITION, SAMPLED, LIMIT, SEED = range(5)


@dataclass(frozen=True)
class NewRow:
    """An answer that has not begun."""

    token: int
    """The prompt's last token."""
    position: int
    """Of that token."""
    seed: int
    sampling: Sampling


class Batch:
    def __init__(self, cache: KvCache, end_tokens: Tensor, *, device: torch.device) -> None:
        """end_tokens: bool, shape (V,)."""
        self.cache = cache
        self.count = 0
        self._end_tokens = end_tokens
        self._state = torch.zeros((5, 0), dtype=torch.int64, device=device)
        self._temperature = torch.zeros(0, dtype=torch.float32, device=device)
        self._ids = torch.zeros((0, 0), dtype=torch.int32, device=device)
        self._logprobs = torch.zeros((0, 0), dtype=torch.float32, device=device)
        # On the host, so that no step has to ask the device: every row advances by one a step, hence
        # position = origin + steps.
        self._steps = 0
        self._origins: list[int] = []
        self._greedy: list[bool] = []

    @property
    def tokens(self) -> Tensor:
        """To feed next, (B, 1)."""
        return self._state[TOKEN, : self.count, None]

    @property
    def positions(self) -> Tensor:
        """Of the tokens to feed next, (B,)."""
        return self._state[POSITION, : self.count]

    @property
    def sampled(self) -> Tensor:
        """How many tokens each row has, (B,)."""
        return self._state[SAMPLED, : self.count]

    @property
    def temperature(self) -> Tensor:
        """(B,) float32."""
        return self._temperature[: self.count]

    @property
    def length(self) -> int:
        """Slots that the longest row needs once its next token is fed."""
        return max(self._origins, default=-1 - self._steps) + self._steps + 1

    def runs(self) -> list[Run]:
        """Of the rows in use, at least one, once their next tokens are fed."""
        return runs_of(self.cache.read_slots(np.array(self._origins) + self._steps + 1))

    def add(self, rows: Sequence[NewRow]) -> None:
        """Append rows whose prompts, but for the last token, are in the cache already."""
        first, last = self.count, self.count + len(rows)
        self._reserve(last, max(row.sampling.max_tokens for row in rows))
        state = [[row.token, row.position, 0, row.sampling.max_tokens, row.seed] for row in rows]
        temperatures = [row.sampling.temperature for row in rows]
        self._state[:, first:last] = torch.tensor(state, dtype=torch.int64).T
        self._temperature[first:last] = torch.tensor(temperatures)
        self._origins += [row.position - self._steps for row in rows]
        self._greedy += [temperature == 0 for temperature in temperatures]
        self.count = last

    def _reserve(self, rows: int, tokens: int) -> None:
        self._state = enlarged(self._state, (5, rows))
        self._temperature = enlarged(self._temperature, (rows,))
        self._ids = enlarged(self._ids, (rows, tokens))
        self._logprobs = enlarged(self._logprobs, (rows, tokens))

    def advance(self, logits: Tensor) -> list[int]:
        """Sample one token for every row from logits (B, V); returns the rows that ended.

        A row ends with an end token, at its limit, or because its logits are not finite.
        """
        rows = slice(self.count)
        state, temperature = self._state[:, rows], self._temperature[rows]
        ids, logprobs = choose(
            logits.float(), temperature, state[SEED], state[SAMPLED], greedy_rows=sum(self._greedy)
        )
        at = state[SAMPLED, :, None]
        self._ids[rows].scatter_(1, at, ids[:, None].to(torch.int32))
        self._logprobs[rows].scatter_(1, at, logprobs[:, None])
        state[TOKEN] = ids
        state[POSITION : SAMPLED + 1] += 1
        self._steps += 1
        ended = self._end_tokens[ids] | (state[SAMPLED] == state[LIMIT]) | ~logprobs.isfinite()
        return ended.nonzero().squeeze(1).tolist() if bool(ended.any()) else []

    def taken(self, row: int, tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """A row's first `tokens` ids (int32) and log-probabilities (float32), copied."""
        ids = self._ids[row, :tokens].cpu().numpy().copy()
        return ids, self._logprobs[row, :tokens].cpu().numpy().copy()

    def ends(self, token: int) -> bool:
        return bool(self._end_tokens[token])

    def remove(self, rows: Sequence[int]) -> list[tuple[int, int]]:
        """Close up over rows that ended; returns (from, to) of the rows that moved."""
        gone = set(rows)
        count = self.count - len(gone)
        targets = [row for row in sorted(gone) if row < count]
        sources = [row for row in range(count, self.count) if row not in gone]
        if targets:
            for tensor in (self._temperature, self._ids, self._logprobs):
                tensor[targets] = tensor[sources]
            self._state[:, targets] = self._state[:, sources]
            self.cache.move(sources, targets, self._steps + max(self._origins[s] for s in sources))
            for source, target in zip(sources, targets, strict=True):
                self._origins[target] = self._origins[source]
                self._greedy[target] = self._greedy[source]
        del self._origins[count:], self._greedy[count:]
        self.count = count
        return list(zip(sources, targets, strict=True))
