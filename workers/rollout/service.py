"""The two stages of the rollout, as handlers of one message each, with what they share."""

from collections.abc import Sequence
from dataclasses import dataclass

from broker.errors import Poison
from broker.messages import Event, GroupRequested
from broker.telemetry import Health
from workers.rollout.answers import Group
from workers.rollout.engine import Engine
from workers.rollout.ledger_view import LedgerView
from workers.rollout.weights import NewestWeights, PinnedWeights


@dataclass(frozen=True)
class Service:
    engine: Engine
    """Of training answers, kept at the newest weights."""
    newest: NewestWeights
    pinned: PinnedWeights
    ledger: LedgerView
    group: Group
    weights_wait_s: float
    health: Health

    def has_ended(self, request: GroupRequested) -> bool:
        """A request can come again after its group has ended and its output is purged."""
        return request.group.request_seq <= self.ledger.floor

    async def train(self, event: Event) -> Sequence[Event]:
        """Answers by weights at least as new as requested."""
        request = expect_request(event)
        if self.has_ended(request):
            return ()
        job = self.group.job(request)
        await self.newest.at_least(request.requested_version, self.weights_wait_s, self.health)
        (result,) = await self.engine.generate([job])
        return (self.group.generated(request, result),)

    async def measure(self, event: Event) -> Sequence[Event]:
        """Answers by exactly the weights requested; evaluation and probes."""
        request = expect_request(event)
        if self.has_ended(request):
            return ()
        job = self.group.job(request)
        result = await self.pinned.generate(request.requested_version, job, self.health)
        return (self.group.generated(request, result),)


def expect_request(event: Event) -> GroupRequested:
    if not isinstance(event, GroupRequested):
        raise Poison(f"{event.KIND} in REQUESTS; expected group_requested")
    return event
