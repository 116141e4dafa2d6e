"""What a step reports about itself: facts of its groups, and sums over the tokens it computed."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from broker.messages import GroupAnnotated, PlannedGroup
from learner.batch import Row
from learner.losses.base import TokenLosses

Metrics = dict[str, float | None]


@dataclass
class TokenSums:
    """Sums over the answer tokens that went through the model: rows without signal are not computed."""

    count: int = 0
    loss: float = 0.0
    """With weights and denominator: the loss of the step."""
    entropy: float = 0.0
    kl: float = 0.0
    ratio: float = 0.0
    ratio_max: float = 0.0
    clipped: float = 0.0

    def add(
        self,
        losses: TokenLosses,
        weighted: torch.Tensor,
        entropy_N: torch.Tensor,
        kept_N: torch.Tensor,
    ) -> None:
        """One micro-batch; masked tokens count only towards the loss, as the zeros they are."""
        self.loss += weighted.item()
        kept = int(kept_N.sum())
        if not kept:
            return
        log_ratios_N = losses.log_ratios_N[kept_N].double()
        ratios_N = log_ratios_N.exp()
        self.count += kept
        self.entropy += entropy_N[kept_N].double().sum().item()
        # k3 with rollout as the sampled side: r - 1 - log r, never negative.
        self.kl += (ratios_N - 1.0 - log_ratios_N).sum().item()
        self.ratio += ratios_N.sum().item()
        self.ratio_max = max(self.ratio_max, ratios_N.max().item())
        self.clipped += losses.clipped_N[kept_N].sum().item()

    def metrics(self) -> Metrics:
        """Means over the computed tokens; None when there were none."""
        if not self.count:
            names = ("entropy", "kl", "ratio_mean", "ratio_max", "clip_fraction")
            return {"loss": self.loss, **dict.fromkeys(names)}
        return {
            "loss": self.loss,
            "entropy": self.entropy / self.count,
            "kl": self.kl / self.count,
            "ratio_mean": self.ratio / self.count,
            "ratio_max": self.ratio_max,
            "clip_fraction": self.clipped / self.count,
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
    found: Metrics = {
        "groups": len(groups),
        "generations": len(rows),
        "tokens": sum(row.tokens for row in rows),
        "kept_generations": len(kept),
        "kept_tokens": sum(row.tokens for row in kept),
        "signal_groups": len(
            {row.group for row, signal in zip(rows, signals, strict=True) if signal}
        ),
        "abs_weighted_advantage": sum(signals),
        "staleness_mean": sum(ages) / len(ages) if ages else None,
        "staleness_max": max(ages, default=None),
        "fresh_share": sum(age == 0 for age in ages) / len(ages) if ages else None,
        "reward_mean": reward.value(),
    }
    for name, domain in sorted(domains.items()):
        found[f"groups/{name}"] = domain.groups
        found[f"reward/{name}"] = domain.reward.value()
    return found
