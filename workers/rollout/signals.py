"""What a policy may want to know of an answer beside its tokens; recorded only for a run that asks.

Legend: R rows, B rows in use, T tokens, V vocabulary, N layers, H hidden size.
"""

from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from workers.rollout.enlarge import enlarged

ENTROPY, SELF_CERTAINTY, HIDDEN = "entropy", "self_certainty", "hidden"


def token_entropy(logits: Tensor, temperature: Tensor) -> Tensor:
    """(B,) nats, of the distribution sampled from; greedy rows: of temperature 1. logits (B, V) float32."""
    divisor = torch.where(temperature > 0, temperature, 1.0)
    logprobs = torch.log_softmax(logits / divisor[:, None], dim=-1)
    return -(logprobs.exp() * logprobs).nan_to_num(nan=0.0).sum(-1)


def self_certainty(logits: Tensor) -> Tensor:
    """(B,) KL(uniform || p) = logsumexp(z) - mean(z) - log V of the unprocessed logits (arXiv:2505.19590).

    Infinite where a logit is -inf, as the divergence is.
    """
    vocabulary = logits.shape[-1]
    return torch.logsumexp(logits, -1) - logits.mean(-1) - float(np.log(vocabulary))


class Recorder:
    """Signals of the rows in progress; rows are those of the batch and move with them."""

    def __init__(self, names: Collection[str], *, device: torch.device) -> None:
        self.hidden = HIDDEN in names
        """Whether the model must hand out its hidden states."""
        self._per_token = {
            name: torch.zeros((0, 0), device=device)
            for name in (ENTROPY, SELF_CERTAINTY)
            if name in names
        }
        self._sums = torch.zeros((0, 0, 0), device=device)
        """(R, N + 1, H) over the tokens so far: embedding first, the last after the final norm."""

    def begin(self, first: int, last: int, tokens: int) -> None:
        """Rows first..last-1 are new, of at most `tokens` tokens."""
        for name, old in self._per_token.items():
            self._per_token[name] = enlarged(old, (last, tokens))
        self._sums = enlarged(self._sums, (last, *self._sums.shape[1:]))
        self._sums[first:last] = 0

    def record(
        self,
        sampled: Tensor,
        logits: Tensor,
        temperature: Tensor,
        hidden_states: Sequence[Tensor] | None,
    ) -> None:
        """One step: sampled (B,) tokens each row has before it, logits (B, V), hidden states (B, 1, H) each.

        The hidden states are those from which the token is sampled.
        """
        values = {
            ENTROPY: lambda: token_entropy(logits.float(), temperature),
            SELF_CERTAINTY: lambda: self_certainty(logits.float()),
        }
        for name, store in self._per_token.items():
            store[: len(sampled)].scatter_(1, sampled[:, None], values[name]()[:, None])
        if self.hidden and hidden_states is not None:
            stacked = torch.stack([state[:, -1] for state in hidden_states], dim=1).float()
            self._sums = enlarged(self._sums, (self._sums.shape[0], *stacked.shape[1:]))
            self._sums[: len(stacked)] += stacked

    def move(self, pairs: Sequence[tuple[int, int]]) -> None:
        """(from, to) of rows that moved."""
        for source, target in pairs:
            for store in (*self._per_token.values(), self._sums):
                store[target] = store[source]

    def taken(self, row: int, tokens: int) -> dict[str, np.ndarray]:
        """float32: (T,) per token; `hidden` the mean over the answer's tokens, (N + 1, H)."""
        found = {name: _numpy(store[row, :tokens]) for name, store in self._per_token.items()}
        if self.hidden:
            found[HIDDEN] = _numpy(self._sums[row] / tokens)
        return found


def _numpy(values: Tensor) -> np.ndarray:
    return values.cpu().numpy().copy()
