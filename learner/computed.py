"""A step on its way, before anybody is told of it: its gradients, then how it came out."""

from dataclasses import dataclass

from broker.messages import StepPlanned
from learner.metrics import Metrics
from learner.trainer import Begun


@dataclass(frozen=True)
class Started:
    """A step whose gradients are there; nothing has changed yet."""

    plan: StepPlanned
    """Written or not."""
    begun: Begun
    facts: Metrics
    seconds: float
    """It took."""

    def fits(self, plan: StepPlanned) -> bool:
        """Whether `plan` is taken with these gradients."""
        return (plan.version, plan.groups) == (self.plan.version, self.plan.groups)


@dataclass(frozen=True)
class Computed:
    """A step as computed, before anybody is told."""

    skipped: str
    data: bytes
    """The model weights after it; empty when skipped."""
    metrics: Metrics
