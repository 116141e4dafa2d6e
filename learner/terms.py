"""The objective of a micro-batch: the loss with its corrections, and the terms beside it. Pure but for sums.

What is summed here over all micro-batches of an update is the update's loss:
sum of w f l / Z  +  sum of (kl coefficient x divergence - entropy bonus x entropy) / Z, with w the weights,
f the corrections' factors, l the token losses and Z the denominator. The terms beside the loss are
multiplied by neither w nor f, as in verl; a masked row is regularised like any other.
"""

from collections.abc import Sequence

import torch

from learner.corrections import make_corrections
from learner.kl import divergence
from learner.layout import Line
from learner.losses import make_loss
from learner.losses.base import Tokens
from learner.metrics import TokenSums
from learner.objective import M2po, Objective


def tokens_of(line: Line, logprobs_N: torch.Tensor, old_N: torch.Tensor) -> Tokens:
    return Tokens(
        logprobs_N=logprobs_N,
        old_logprobs_N=old_N,
        rollout_logprobs_N=line.rollout_logprobs_N,
        advantages_N=line.advantages_N,
        kept_N=line.kept_N,
        ages_N=line.ages_N,
        rows_N=line.rows_N,
        rows=line.rows,
    )


class Terms:
    """An objective with its parts made."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._loss = make_loss(objective.loss)
        corrections = objective.corrections
        self._here = make_corrections([c for c in corrections if not isinstance(c, M2po)])
        self._whole = make_corrections([c for c in corrections if isinstance(c, M2po)])

    @property
    def entropy_gradient(self) -> bool:
        return self._objective.entropy_bonus > 0

    def whole_step_factors(self, line: Line, old_N: torch.Tensor) -> torch.Tensor:
        """(N,) factors of the corrections that compare all tokens of an update; line: all its rows."""
        return self._whole(tokens_of(line, old_N, old_N))

    def loss(
        self,
        line: Line,
        logprobs_N: torch.Tensor,
        entropy_N: torch.Tensor,
        *,
        old_N: torch.Tensor | None,
        whole_N: torch.Tensor | None,
        reference_N: torch.Tensor | None,
        sums: TokenSums,
    ) -> torch.Tensor:
        """The micro-batch's part of the loss, a scalar with gradients.

        old_N: None where the step is of one update, so that old and trained are the same. whole_N: factors
        known beforehand. reference_N: log-probabilities under the frozen reference.
        """
        tokens = tokens_of(line, logprobs_N, logprobs_N.detach() if old_N is None else old_N)
        found = self._loss(tokens)
        factors_N = self._here(tokens)
        if whole_N is not None:
            factors_N = factors_N * whole_N
        total = (found.losses_N * factors_N * line.coefficients_N).sum()
        kl = self._objective.kl
        if kl is not None and reference_N is not None:
            divergence_N = divergence(kl.name, logprobs_N, reference_N)
            total = total + kl.coefficient * (divergence_N * line.scales_N).sum()
            sums.add_reference(divergence_N)
        if self.entropy_gradient:
            total = total - self._objective.entropy_bonus * (entropy_N * line.scales_N).sum()
        sums.loss += total.item()
        sums.add(tokens, found.clipped_N, factors_N, entropy_N)
        return total


def split(values_N: torch.Tensor, counts: Sequence[int]) -> list[torch.Tensor]:
    """Values of rows in a line, per row."""
    return list(values_N.split(list(counts)))
