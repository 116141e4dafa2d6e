"""What a step reports about itself: facts of its groups, and sums over the tokens it computed."""

import operator
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from broker.messages import GroupAnnotated, PlannedGroup
from learner.batch import Row
from learner.losses.base import Tokens, masked_difference

Metrics = dict[str, float | None]


@dataclass
class TokenSums:
    """Sums over the answer tokens that the loss was computed for: rows without signal are not among them."""

    count: int = 0
    loss: float = 0.0
    """With weights, corrections and denominator, regularisers included: the loss of the step."""
    entropy: float = 0.0
    kl: float = 0.0
    ratio: float = 0.0
    ratio_square: float = 0.0
    ratio_min: float = float("inf")
    ratio_max: float = 0.0
    clipped: float = 0.0
    corrected: float = 0.0
    """Tokens that a correction left out."""
    reference_count: int = 0
    reference_kl: float = 0.0

    def add(
        self,
        tokens: Tokens,
        clipped_N: torch.Tensor,
        factors_N: torch.Tensor,
        entropy_N: torch.Tensor,
    ) -> None:
        """One micro-batch; masked tokens do not count."""
        kept = int(tokens.kept_N.sum())
        if not kept:
            return
        rollout_N = tokens.rollout_logprobs_N
        differences = (
            masked_difference(left_N, rollout_N, tokens.kept_N)[tokens.kept_N].detach().double()
            for left_N in (tokens.old_logprobs_N, tokens.logprobs_N)
        )
        old_N, trained_N = differences
        ratios_N = trained_N.exp()
        self.count += kept
        self.entropy += entropy_N.detach()[tokens.kept_N].double().sum().item()
        # k3 with rollout as the sampled side: r - 1 - log r, never negative.
        self.kl += (old_N.exp() - 1.0 - old_N).sum().item()
        self.ratio += ratios_N.sum().item()
        self.ratio_square += ratios_N.square().sum().item()
        self.ratio_min = min(self.ratio_min, ratios_N.min().item())
        self.ratio_max = max(self.ratio_max, ratios_N.max().item())
        self.clipped += clipped_N[tokens.kept_N].sum().item()
        self.corrected += (factors_N[tokens.kept_N] == 0).sum().item()

    def add_reference(self, divergence_N: torch.Tensor) -> None:
        """Of every token that the divergence acts on."""
        self.reference_count += len(divergence_N)
        self.reference_kl += divergence_N.detach().double().sum().item()

    def include(self, more: "TokenSums") -> None:
        """Sums over further micro-batches."""
        for name, value in vars(more).items():
            combine = {"ratio_min": min, "ratio_max": max}.get(name, operator.add)
            setattr(self, name, combine(getattr(self, name), value))

    def metrics(self) -> Metrics:
        """Means over the computed tokens; None when there were none."""
        count = self.count
        of_tokens = {
            "entropy": self.entropy, "kl": self.kl, "ratio_mean": self.ratio,
            "clip_fraction": self.clipped, "corrected_fraction": self.corrected,
        }  # fmt: skip
        return {
            "loss": self.loss,
            **{k: v / count if count else None for k, v in of_tokens.items()},
            "ratio_min": self.ratio_min if count else None,
            "ratio_max": self.ratio_max if count else None,
            # As a share of the tokens: 1 when all weigh the same.
            "effective_sample_size": self.ratio**2 / (count * self.ratio_square) if count else None,
            "reference_kl": self.reference_kl / self.reference_count
            if self.reference_count
            else None,
        }


@dataclass
class _Mean:
    total: float = 0.0
    count: int = 0

    def value(self) -> float | None:
        return self.total / self.count if self.count else None


@dataclass
class _Domain:
    groups: int = 0
    reward: _Mean = field(default_factory=_Mean)


def group_metrics(
    planned: Sequence[PlannedGroup], groups: Sequence[GroupAnnotated], rows: Sequence[Row]
) -> Metrics:
    """Facts of a step's groups that need no model."""
    domains: dict[str, _Domain] = defaultdict(_Domain)
    reward = _Mean()
    for group in groups:
        domain = domains[group.group.domain]
        domain.groups += 1
        for mean in (reward, domain.reward):
            values = [a.reward for a in group.annotations if a.reward is not None]
            mean.total += sum(values)
            mean.count += len(values)
    signals = [row.signal() for row in rows]
    kept = [row for row in rows if row.weight > 0]
    ages = [group.staleness for group in planned]
    lengths = [row.tokens for row in rows]
    informative = {row.group for row, signal in zip(rows, signals, strict=True) if signal}
    found: Metrics = {
        "groups": len(groups),
        "generations": len(rows),
        "tokens": sum(lengths),
        "kept_generations": len(kept),
        "kept_tokens": sum(row.tokens for row in kept),
        "signal_groups": len(informative),
        "zero_signal_share": 1.0 - len(informative) / len(groups) if groups else None,
        "abs_weighted_advantage": sum(signals),
        "staleness_mean": sum(ages) / len(ages) if ages else None,
        "staleness_max": max(ages, default=None),
        "fresh_share": sum(age == 0 for age in ages) / len(ages) if ages else None,
        "reward_mean": reward.value(),
    }
    for share in (10, 50, 90, 100):
        found[f"length_p{share}"] = float(np.percentile(lengths, share)) if lengths else None
    for name, domain in sorted(domains.items()):
        found[f"groups/{name}"] = domain.groups
        found[f"reward/{name}"] = domain.reward.value()
    return found
