"""What goes into and comes out of the window machine: rules, records of the past, decisions, snapshot."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict

from broker.messages import Annotation, GroupAnnotated, GroupVerified, MixtureShare, ShadowDecided
from workers.policies.order import Arrival
from workers.policies.program import Memory
from workers.policies.shadows import Shadowed
from workers.policies.statistics import StatisticsState

RUN_ENDED = "run_ended"
"""Reason of groups that came too late for the last window."""


@dataclass(frozen=True)
class Rules:
    """When a window closes, and in which order groups are decided."""

    groups_per_step: int
    refill_limit: int
    """Groups decided for one window after which it closes with what it has, if anything."""
    deterministic: bool = False
    snapshot_every: int = 1
    """Windows; more for programs whose memory grows."""


@dataclass(frozen=True)
class Record:
    """What ANNOTATED holds about a group."""

    request_seq: int
    verified_seq: int
    outcome: str
    reason: str


@dataclass(frozen=True)
class Recorded:
    """What the logs already say when the machine starts."""

    groups: Mapping[str, Record] = field(default_factory=dict[str, Record])
    """By group id."""
    cuts: Mapping[int, int] = field(default_factory=dict[int, int])
    """Sequence in VERIFIED that closed each window."""
    ended_requests: int = 0
    """Groups requested up to this request_seq belong to an earlier, ended run of the same id;
    without a record their output is ignored."""
    ended_verified: int = 0
    """Last sequence of VERIFIED that counts for them."""
    floor: int = 0
    """Groups requested up to this request_seq have ended and may be purged."""


class Snapshot(BaseModel):
    """The machine's state right after a window closed."""

    model_config = ConfigDict(extra="forbid")

    policy_version: str
    position: int
    """In VERIFIED."""
    window: int
    """Newest closed one."""
    target: dict[str, float]
    """Mixture in force."""
    statistics: StatisticsState
    memory: Memory
    shadows: dict[str, Memory] = {}
    """What each shadow policy remembers."""
    pending: list[int]
    """Sequences of arrivals held back: to be fed again."""
    broken: dict[str, int]
    """Bundles with a failed member, and how many of their members are still to come."""
    drained_after: int | None
    """Set when this was the last window: the `ended_requests` of the run that was draining."""


@dataclass(frozen=True, eq=False)
class Ended:
    """A group that is not trained on."""

    arrival: Arrival
    outcome: Literal["dropped", "failed"]
    reason: str
    annotations: tuple[Annotation, ...] = ()


@dataclass(frozen=True, eq=False)
class Closed:
    """A window to train on, with the mixture that follows from it."""

    window: int
    cut: int
    members: tuple[tuple[Arrival, tuple[Annotation, ...]], ...]
    request_seq: int
    shares: tuple[MixtureShare, ...]
    """`trained` is still 0: only LEDGER knows it."""
    reason: str
    """Of the mixture update: which realised shares are far from their target, and why."""
    pending: tuple[int, ...]
    """Sequences of arrivals held back; a restart needs them still."""
    snapshot: bytes | None
    """Snapshot as JSON, every so many windows."""
    shadowed: tuple[Shadowed, ...] = ()


Decision = Ended | Closed | Shadowed
"""Shadows speak by themselves only about groups that came too late for a window."""


def run_ended(arrival: Arrival) -> Ended:
    """The end of a group that comes when no window is opened any more."""
    if arrival.failed:
        return failed(arrival, arrival.event.reason)
    return Ended(arrival, "dropped", RUN_ENDED)


def failed(arrival: Arrival, reason: str) -> Ended:
    return Ended(arrival, "failed", reason or "failed")


@dataclass(frozen=True)
class Author:
    """Who decides."""

    writer_id: str
    policy: str
    policy_version: str


def events(decision: Ended | Closed, author: Author, at_us: int) -> list[GroupAnnotated]:
    """The messages that tell a decision, in the order in which they are published."""
    if isinstance(decision, Closed):
        return [
            _event(
                arrival.event, author, at_us, arrival.sequence,
                outcome="admitted", reason="admitted", annotations=annotations,
                generations=arrival.event.generations,
                window=decision.window, window_size=len(decision.members), window_index=index,
                cut=decision.cut,
            )
            for index, (arrival, annotations) in enumerate(decision.members)
        ]  # fmt: skip
    arrival = decision.arrival
    return [
        _event(
            arrival.event, author, at_us, arrival.sequence,
            outcome=decision.outcome, reason=decision.reason, annotations=decision.annotations,
            generations=(), window=None, window_size=None, window_index=None, cut=None,
        )
    ]  # fmt: skip


def shadow_events(found: Shadowed, author: Author, at_us: int) -> list[ShadowDecided]:
    return [
        ShadowDecided(
            writer_id=author.writer_id,
            at_us=at_us,
            group=opinion.arrival.event.group,
            outcome="admitted" if opinion.reason == "admitted" else "dropped",
            reason=opinion.reason,
            annotations=opinion.annotations,
            window=found.window,
            verified_seq=opinion.arrival.sequence,
            policy=found.policy,
            policy_version=found.policy_version,
        )
        for opinion in found.opinions
    ]


def _event(
    verified: GroupVerified, author: Author, at_us: int, sequence: int, **decided: object
) -> GroupAnnotated:
    return GroupAnnotated.model_validate(
        {
            "writer_id": author.writer_id,
            "at_us": at_us,
            "group": verified.group,
            "request": verified.request,
            "verified_seq": sequence,
            "policy": author.policy,
            "policy_version": author.policy_version,
            **decided,
        }
    )
