"""One correction a file: a factor per token for what the engine's and the trainer's probabilities differ by.

rho = old / rollout. Factors carry no gradient. The denominator of the step is fixed before any of them.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch

from learner.corrections.icepop import icepop
from learner.corrections.m2po import m2po
from learner.corrections.opsm import opsm
from learner.corrections.sequence_mask import sequence_mask
from learner.corrections.tis import tis
from learner.losses.base import Tokens
from learner.objective import AnyCorrection

CORRECTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "tis": tis,
    "icepop": icepop,
    "sequence_mask": sequence_mask,
    "m2po": m2po,
    "opsm": opsm,
}
"""Name in the configuration to correction; its options are keywords."""

Correction = Callable[[Tokens], torch.Tensor]


def make_corrections(settings: Sequence[AnyCorrection]) -> Correction:
    """All corrections as one: (N,) factors, 1 where none applies."""
    parts: list[Correction] = [
        partial(CORRECTIONS[one.name], **one.model_dump(exclude={"name"})) for one in settings
    ]

    @torch.no_grad()
    def factors(tokens: Tokens) -> torch.Tensor:
        found_N = torch.ones_like(tokens.logprobs_N)
        for part in parts:
            found_N = found_N * part(tokens)
        return found_N

    return factors
