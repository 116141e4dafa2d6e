"""Correction of a verifier's errors with rho1 estimated while the run goes, from appeals (C4).

The verifier `appeals` looks again at a share of what its rule calls wrong; those that were right after
all tell how much the rule misses. The estimate is a memory, and is recorded with each answer as `rho1`.
"""

from collections.abc import Mapping

import numpy as np
from pydantic import Field, model_validator

from broker.messages import Json
from workers.policies.advantages import ADVANTAGES
from workers.policies.batch import Batch
from workers.policies.group import SLACK, Group
from workers.policies.noise import LEAST_J, Pgbc, Pgfc, Rates, appeals_rate


class Appealed(Rates):
    """Base: rho1 of each domain from its appeals; the stated one until enough is known."""

    share: float = Field(gt=0, le=1)
    """Of the rule's negatives that are looked at again: the verifier's own."""
    keep: float = Field(default=0.99, ge=0, le=1)
    """Of the counts from one group to the next: their moving average [PROP]."""
    least: float = Field(default=20.0, gt=0)
    """Right answers, missed ones included, below which a domain's rate is unknown [PROP]."""
    component: str = "appeal"
    """Of the verdict: 1 for an answer that was right after all, 0 for one that was not."""

    def observe(self, memory: Json, group: Group) -> Mapping[str, float]:
        """Counts the group, whether it is kept or not."""
        graded_G = group.sound_G & np.isfinite(group.outcomes_G)
        right_G = graded_G & (group.outcomes_G >= group.success - SLACK)
        appeals = [
            group.components[row][self.component]
            for row in np.flatnonzero(graded_G & ~right_G)
            if self.component in group.components[row]
        ]
        before = memory.get(group.domain, (0.0, 0.0, 0.0))
        assert isinstance(before, list | tuple)  # only this method writes its memory
        news = (sum(appeal >= 0.5 for appeal in appeals), int(right_G.sum()), len(appeals))
        counts = [self.keep * old + new for old, new in zip(before, news, strict=True)]
        memory[group.domain] = counts
        flipped, positives, looked = counts
        # Without any appeal there may be no such verifier: nothing is known, not that nothing is missed.
        if not looked or flipped / self.share + positives < self.least:
            return {}
        rho0, _ = self.of(group.domain)
        return {"rho1": min(appeals_rate(flipped, self.share, positives), 1 - rho0 - LEAST_J)}

    def rows(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        rho0_B, rho1_B = super().rows(batch)
        for number, group in enumerate(batch.groups):
            rho1_B[batch.rows(number)] = group.facts.get("rho1", rho1_B[batch.rows(number)])
        return rho0_B, rho1_B


@ADVANTAGES.register("pgbc_appeals")
class PgbcAppeals(Appealed, Pgbc):
    """`pgbc` with rho1 from appeals (C4) [TEXT]."""

    @model_validator(mode="after")
    def _corrects(self) -> "PgbcAppeals":
        # Stated rates of 0 are a start, not the control.
        return self


@ADVANTAGES.register("pgfc_appeals")
class PgfcAppeals(Appealed, Pgfc):
    """`pgfc` with rho1 from appeals (C4) [TEXT]."""
