"""A policy program: the stages of `[policy]` put together, from a verified group to its annotations.

Every decision is a pure function of the groups given, in the order given, and of the program's
memory, which holds JSON values only and travels in the snapshot.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import numpy as np

import workers.policies.methods  # noqa: F401 - registers every method
from broker.errors import BadConfiguration
from broker.messages import Annotation, Json
from workers.policies.admission import ADMISSIONS, Admission
from workers.policies.advantages import ADVANTAGES, Advantage
from workers.policies.annotate import annotate_window
from workers.policies.batch import Batch, make_batch
from workers.policies.combine import build_weight
from workers.policies.group import Group
from workers.policies.judged import Judged
from workers.policies.masks import MASKS, Mask
from workers.policies.mixers import MIXERS, Mixer
from workers.policies.presets import resolve
from workers.policies.registry import SIGNALS, Named
from workers.policies.rewards import REWARDS, Reward
from workers.policies.settings import Stages
from workers.policies.targets import TARGETS, Target
from workers.policies.weights import Weight

Memory = dict[str, Json]
"""Per stage with a memory, what it remembers."""


class Remembers(Protocol):
    """A stage that keeps histories over visits, by sample key."""

    def observe(self, memory: Json, group: Group) -> Mapping[str, float]:
        """Take a visit into `memory`; returns facts for the group. Called once per verified group."""
        ...


@dataclass(frozen=True, eq=False)
class WindowDecision:
    """What was decided about a window's admitted groups."""

    annotations: tuple[tuple[Annotation, ...], ...]
    """Per group, per generation."""
    magnitudes: Mapping[str, float]
    """Per domain, the sum of |advantage| over usable rows."""


class Program:
    """Target, admission, reward, advantage and weight in this order; and the mixture."""

    def __init__(self, settings: Stages, measured: frozenset[str] = frozenset()) -> None:
        """measured: signals that the engine provides beside the sampled tokens' log-probabilities."""
        settings = resolve(settings)
        self.target: Named[Target] = TARGETS.build(settings.target)
        self.admit: list[Named[Admission]] = [ADMISSIONS.build(s) for s in settings.admit]
        self.reward: list[Named[Reward]] = [REWARDS.build(s) for s in settings.reward]
        self.advantage: Named[Advantage] = ADVANTAGES.build(settings.advantage)
        self.mask: list[Named[Mask]] = [MASKS.build(s) for s in settings.mask]
        self.weight: Named[Weight] = build_weight(settings.weight)
        self.mixer: Named[Mixer] = MIXERS.build(settings.mixer)
        if not self.reward:
            raise BadConfiguration("policy.reward (): expected at least one method")
        stages = [
            self.target, *self.admit, *self.reward, self.advantage, *self.mask, self.weight,
        ]  # fmt: skip
        self.reads = frozenset(signal for stage in stages for signal in stage.reads)
        """Signals beside scores and lengths that it reads."""
        for stage in stages:
            _refuse_unmeasured(stage, measured)
        self._remembering: dict[str, Remembers] = {
            stage.name: cast("Remembers", stage.method)
            for stage in stages
            if hasattr(stage.method, "observe")
        }
        self.name = settings.preset or f"{self.advantage.name}-{self.weight.name}"
        tables = [stage.table for stage in [*stages, self.mixer]]
        canonical = json.dumps(tables, sort_keys=True, default=str)
        self.version = hashlib.sha256(canonical.encode()).hexdigest()[:16]
        """Digest of every stage with all its options: equal versions decide equally."""

    def refuse_small_groups(self, size: int) -> None:
        """BadConfiguration when every group of `size` answers would be dropped as too small."""
        if size < (needed := self.advantage.method.rows_needed):
            raise BadConfiguration(
                f"run.group_size {size}: policy.advantage {self.advantage.name} compares the answers of "
                f"a group with each other; expected at least {needed}"
            )

    @property
    def remembers(self) -> bool:
        """Whether any stage keeps histories, so that a snapshot may be large."""
        return bool(self._remembering)

    def judge(self, group: Group, memory: Memory) -> Judged:
        """Decide about one group by itself. Takes the visit into `memory`."""
        facts = dict(group.facts)
        for name, stage in self._remembering.items():
            facts |= stage.observe(memory.setdefault(name, {}), group)
        group = self.target.method(replace(group, facts=facts) if facts else group)
        reason = self._why_unusable(group, group.usable_G)
        for stage in self.admit:
            if not reason and not stage.method(group):
                reason = f"filtered:{stage.name}"
        rewards_G = np.full(group.size, np.nan)
        signals: dict[str, np.ndarray] = {}
        if not reason:
            for stage in self.reward:
                signals |= _told(stage.method, group)
                rewards_G = np.asarray(stage.method(group, rewards_G), dtype=np.float64)
            rewards_G = np.where(group.usable_G & np.isfinite(rewards_G), rewards_G, np.nan)
            reason = self._why_unusable(group, np.isfinite(rewards_G))
        return Judged(group, rewards_G, reason, signals)

    def _why_unusable(self, group: Group, usable_G: np.ndarray) -> str:
        """Too few rows to learn from: the reason most of the others were excluded for, by rank."""
        if int(usable_G.sum()) >= self.advantage.method.rows_needed:
            return ""
        reasons = {
            group.exclusion(row) or "nonfinite" for row in range(group.size) if not usable_G[row]
        }
        return next((r for r in ("nonfinite", "ungraded", "empty") if r in reasons), "too_small")

    def decide(
        self, judged: Sequence[Judged], window: int = 0, memory: Memory | None = None
    ) -> WindowDecision:
        """Advantages, masks and weights over a whole window of admitted groups."""
        batch = make_batch([j.group for j in judged], [j.rewards_G for j in judged])
        advantages_B = np.asarray(self.advantage.method(batch), dtype=np.float64)
        # A method that fails on a row must not poison the step: the row is left out.
        usable_B = batch.usable_B & np.isfinite(advantages_B)
        advantages_B = np.where(usable_B, advantages_B, 0.0)
        reasons_B = [""] * len(batch)
        for mask in self.mask:
            for row in np.flatnonzero(usable_B & ~mask.method(batch)):
                reasons_B[row] = reasons_B[row] or f"masked:{mask.name}"
        unmasked_B = np.array([not reason for reason in reasons_B], dtype=bool)
        carried = {} if memory is None else memory.setdefault("weight", {})
        weights = self.weight.method(
            replace(batch, usable_B=usable_B & unmasked_B, window=window, memory=carried),
            advantages_B,
        )
        batch = replace(batch, usable_B=usable_B & np.isfinite(weights.rows_B))
        if weights.advantages_B is not None:
            advantages_B = np.where(usable_B, weights.advantages_B, 0.0)
        weights = replace(
            weights,
            rows_B=np.where(unmasked_B, weights.rows_B, 0.0),
            signals={**_told(self.advantage.method, batch, advantages_B), **weights.signals},
        )
        reasons_B = [reason or self.weight.name for reason in reasons_B]
        return WindowDecision(
            annotate_window(batch, judged, advantages_B, weights, reasons_B),
            _magnitudes(batch, advantages_B),
        )


def _magnitudes(batch: Batch, advantages_B: np.ndarray) -> dict[str, float]:
    """Per domain, the sum of |advantage| over its rows."""
    found: dict[str, float] = {}
    for number, group in enumerate(batch.groups):
        total = float(np.abs(advantages_B[batch.rows(number)]).sum())
        found[group.domain] = found.get(group.domain, 0.0) + total
    return found


def _told(method: object, *arguments: object) -> Mapping[str, np.ndarray]:
    """What a method says it read, when it says anything."""
    tell: Callable[..., Mapping[str, np.ndarray]] | None = getattr(method, "signals", None)
    return tell(*arguments) if callable(tell) else {}


def _refuse_unmeasured(stage: Named[Any], measured: frozenset[str]) -> None:
    missing = stage.needs - measured
    if missing:
        raise BadConfiguration(
            f"policy: {stage.name!r} needs {', '.join(sorted(missing))}, which nobody provides; "
            f"provided are {', '.join(sorted(SIGNALS | measured))}; "
            "what the engine measures is named by rollout.signals"
        )
