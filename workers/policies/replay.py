"""Another policy over the groups of a run that is on record: decided as a shadow would have, from the logs.

The windows are the run's own, as recorded; what the other policy says of their groups is what
`[[policy.shadow]]` records in a run of the same requests.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from broker.messages import Annotation, GroupVerified
from workers.policies.decisions import Closed, Decision, Recorded, Rules
from workers.policies.order import Arrival
from workers.policies.program import Program
from workers.policies.settings import PolicySettings
from workers.policies.shadows import Shadow, Shadowed
from workers.policies.windows import WindowMachine


@dataclass(frozen=True, eq=False)
class Verdicts:
    """A group as both policies see it."""

    event: GroupVerified
    window: int
    recorded: Sequence[Annotation]
    """What was decided in the run; empty when nothing is on record about its answers."""
    other: Sequence[Annotation]
    other_reason: str


class Replay:
    """Feed it VERIFIED in log order (train only); it tells both policies' words, window by window."""

    def __init__(
        self,
        program: Program,
        recorded: Recorded,
        rules: Rules,
        annotations: Mapping[str, Sequence[Annotation]],
        domains: Sequence[str],
    ) -> None:
        """annotations: what is on record, by group id."""
        self._known, self._annotations = recorded.groups, annotations
        # The record wins over this program in everything that is decided for the run itself, and the
        # groups of earlier runs of its id are on record like the others.
        self._machine = WindowMachine(
            Program(PolicySettings()),
            # Nothing goes on from here, so that no snapshot is made.
            replace(rules, snapshot_every=sys.maxsize),
            dict.fromkeys(domains, 1.0),
            replace(recorded, ended_requests=0, ended_verified=0, floor=0),
            shadows=[Shadow(program.name, program)],
        )

    def feed(self, arrival: Arrival) -> list[Verdicts]:
        if arrival.event.group.group_id not in self._known:
            return []
        return self._verdicts(self._machine.feed(arrival))

    def finish(self) -> list[Verdicts]:
        """About the groups that no window took."""
        return self._verdicts(self._machine.drain())

    def _verdicts(self, decisions: Iterable[Decision]) -> list[Verdicts]:
        return [
            Verdicts(
                opinion.arrival.event,
                one.window,
                self._annotations.get(opinion.arrival.event.group.group_id, ()),
                opinion.annotations,
                opinion.reason,
            )
            for one in _shadowed(decisions)
            for opinion in one.opinions
        ]


def _shadowed(decisions: Iterable[Decision]) -> Iterator[Shadowed]:
    for decision in decisions:
        if isinstance(decision, Closed):
            yield from decision.shadowed
        elif isinstance(decision, Shadowed):
            yield decision
