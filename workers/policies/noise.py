"""Correction of a verifier's known error rates (arXiv:2510.00915), and its matched control.

rho0 = P(verdict 1 | wrong), rho1 = P(verdict 0 | right), J = 1 - rho0 - rho1. Both corrections are
affine in the reward: inside group-normalised GRPO they would do nothing, so they replace it.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from workers.policies.advantages import ADVANTAGES
from workers.policies.advantages_more import leave_one_out
from workers.policies.batch import Batch, per_group
from workers.policies.registry import Method

LEAST_J = 0.05
"""A verifier that says so little cannot be corrected [PROP]."""


def backward(rewards: np.ndarray, rho0: float, rho1: float) -> np.ndarray:
    """Unbiased estimate of the true reward: (r - rho0) / J. What `pgbc` centres, as a formula (C4)."""
    return (rewards - rho0) / (1 - rho0 - rho1)


def forward(rewards: np.ndarray, rho1: float) -> np.ndarray:
    """r - (1 - rho1), of `pgfc`: 0 on average over right answers, -J over wrong ones (C4)."""
    return rewards - (1 - rho1)


def appeals_rate(flipped: float, share: float, positives: float) -> float:
    """rho1 from a second verifier's look at a share of the negatives, `flipped` of which were right."""
    missed = flipped / share
    return (missed + 1e-5) / (missed + positives + 2e-5)


def audit(corrected_B: np.ndarray, control_B: np.ndarray) -> dict[str, float]:
    """How far the correction changes the advantages at all: all 0 and cosine 1 means it does not."""
    apart_B = np.abs(corrected_B - control_B)
    norms = np.linalg.norm(corrected_B) * np.linalg.norm(control_B)
    return {
        "d_mean": float(apart_B.mean()) if len(apart_B) else 0.0,
        "d_max": float(apart_B.max(initial=0.0)),
        "cosine": float(corrected_B @ control_B / norms) if norms else 0.0,
    }


class Rates(Method):
    """Error rates: one pair, or one per domain, which is where backward is more than a rescaling."""

    rho0: float = Field(default=0.0, ge=0, lt=1)
    rho1: float = Field(default=0.0, ge=0, lt=1)
    domains: dict[str, tuple[float, float]] = {}
    """(rho0, rho1) of single domains."""

    @model_validator(mode="after")
    def _informative(self) -> "Rates":
        for rho0, rho1 in [(self.rho0, self.rho1), *self.domains.values()]:
            if min(rho0, rho1) < 0 or 1 - rho0 - rho1 <= LEAST_J:
                raise ValueError(
                    f"rho0 {rho0} and rho1 {rho1}: expected none negative and "
                    f"1 - rho0 - rho1 above {LEAST_J}"
                )
        return self

    def audited(self, batch: Batch, corrected_B: np.ndarray) -> Mapping[str, np.ndarray]:
        """The mandatory audit (B.10): the control's advantages, and how far these differ, (B,) each."""
        usable_B, control_B = batch.usable_B, per_group(batch, leave_one_out)
        found = audit(corrected_B[usable_B], control_B[usable_B])
        whole = {f"audit_{name}": np.full(len(batch), value) for name, value in found.items()}
        return {"noise_control": control_B, **whole}

    def of(self, domain: str) -> tuple[float, float]:
        return self.domains.get(domain, (self.rho0, self.rho1))

    def rows(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """(rho0, rho1) of each row, (B,) each."""
        pairs = [self.of(group.domain) for group in batch.groups for _ in group.indices]
        rates = np.array(pairs, dtype=np.float64).reshape(-1, 2)
        return rates[:, 0], rates[:, 1]


@ADVANTAGES.register("pgbc")
class Pgbc(Rates):
    """Backward correction, leave-one-out baseline, a fixed scale, never the group's std (C4) [TEXT]."""

    rows_needed: ClassVar[int] = 2

    scale: float = Field(default=1.0, gt=0)

    @model_validator(mode="after")
    def _corrects(self) -> "Pgbc":
        # The audit on any mixed group: both would be equal, and the run a mislabelled control.
        mixed_G = leave_one_out(np.array([1.0, 0.0, 0.0, 1.0, 0.0]))
        pairs = [(self.rho0, self.rho1), *self.domains.values()]
        apart = [audit(mixed_G / (1 - a - b) / self.scale, mixed_G)["d_max"] for a, b in pairs]
        if not any(apart):
            raise ValueError(
                f"rho0 {self.rho0} and rho1 {self.rho1}: the advantages would be those of "
                "noise_control (d_max 0); expected a rate above 0"
            )
        return self

    def signals(self, batch: Batch, advantages_B: np.ndarray) -> Mapping[str, np.ndarray]:
        return self.audited(batch, advantages_B)

    def __call__(self, batch: Batch) -> np.ndarray:
        rho0_B, rho1_B = self.rows(batch)
        # The shift cancels in the baseline; what is left is the factor 1 / J of each domain.
        return per_group(batch, leave_one_out) / (1 - rho0_B - rho1_B) / self.scale


@ADVANTAGES.register("pgfc")
class Pgfc(Rates):
    """Forward correction, without a baseline (B.3 of the paper, not its Algorithm 3; C4) [TEXT].

    An all-fail group is pushed down as a whole by 1 - rho1, an all-pass one up by rho1.
    `scale`: divide by J, or by 1 - rho1, or not at all.
    """

    rows_needed: ClassVar[int] = 1

    scale: Literal["one", "informedness", "recall"] = "one"

    def signals(self, batch: Batch, advantages_B: np.ndarray) -> Mapping[str, np.ndarray]:
        return self.audited(batch, advantages_B)

    def __call__(self, batch: Batch) -> np.ndarray:
        rho0_B, rho1_B = self.rows(batch)
        by = {
            "one": np.ones_like(rho0_B),
            "informedness": 1 - rho0_B - rho1_B,
            "recall": 1 - rho1_B,
        }
        corrected_B = (batch.rewards_B - (1 - rho1_B)) / by[self.scale]
        return np.where(batch.usable_B, corrected_B, 0.0)


@ADVANTAGES.register("noise_control")
class NoiseControl(Method):
    """PGBC's plumbing without the correction: the arm to compare with (B.5; C4) [TEXT]."""

    rows_needed: ClassVar[int] = 2

    scale: float = Field(default=1.0, gt=0)

    def __call__(self, batch: Batch) -> np.ndarray:
        return per_group(batch, leave_one_out) / self.scale
