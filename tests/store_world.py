"""A small run as it would be published, with every way in which a group can end."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from broker.bus import Bus, Stored
from broker.codec import encode
from broker.messages import (
    CheckpointWritten,
    DroppedGroup,
    EvaluationFinished,
    EvaluationItem,
    Event,
    GroupRequested,
    Incident,
    PlannedGroup,
    ReaderAdvanced,
    RunDraining,
    RunEnded,
    StepCommitted,
    StepPlanned,
    VerdictRevised,
)
from broker.topology import Log, headers, log_of, subject
from tests.builders import (
    a_generated,
    a_key,
    a_request,
    a_sample,
    a_verdict,
    a_verified,
    an_annotated,
)
from tests.store_events import (
    COMMON,
    RUN,
    SIZE,
    TOKENS,
    mixture,
    shadow,
    started,
    supervision,
    undecided,
    weights,
)


@dataclass
class World:
    """Events by log, in order; the place in its list is the sequence less one."""

    logs: dict[Log, list[Event]] = field(default_factory=lambda: {log: [] for log in Log})

    def say(self, *events: Event) -> int:
        for event in events:
            self.logs[log_of(event.KIND)].append(event)
        return len(self.logs[log_of(events[-1].KIND)])

    def stored(self, log: Log) -> list[Stored]:
        return [
            Stored(log, place, subject(RUN, event), headers(event), encode(event), event.at_us)
            for place, event in enumerate(self.logs[log], start=1)
        ]

    async def publish(self, bus: Bus, logs: Sequence[Log] = tuple(Log)) -> None:
        for log in logs:
            for event in self.logs[log]:
                await bus.publish(event)


def a_small_run(*, ended: bool = True) -> World:
    """Three steps of two groups: five groups trained, one each stale, filtered, failed, left open."""
    world = World()
    world.say(started())
    world.say(mixture(0, step=0, request_seq=0, cut=0, counts=(0, 0, 0, 0)))
    world.say(weights(0))
    evaluate(world, version=0, first_seq=1)
    one, two = ask(world, 4), ask(world, 5)
    admit(world, [one, two], window=1, version=0)
    filtered = ask(world, 6)
    drop(world, filtered)
    commit(world, 1, version=0, groups=[one, two])
    three, four = ask(world, 7), ask(world, 8)
    admit(world, [three, four], window=2, version=0)
    fail(world, ask(world, 9))
    commit(world, 2, version=1, groups=[three, four], staleness=1)
    five, stale = ask(world, 10), ask(world, 11)
    admit(world, [five, stale], window=3, version=0)
    world.say(mixture(3, step=2, request_seq=11, cut=0, counts=(8, 0, 6, 4)))
    commit(world, 3, version=2, groups=[five], staleness=2, stale=stale)
    still_open = ask(world, 12)
    supervise(world)
    world.say(
        shadow(one, window=1),
        VerdictRevised(**COMMON, group_id=one.group.group_id, verdict=a_verdict(1, 1.0)),
        Incident(**COMMON, kind="worker_restarted", role="rollout", detail="again"),
    )
    world.say(ReaderAdvanced(**COMMON, reader="policy", log="VERIFIED", sequence=1))
    if ended:
        end(world, still_open)
    return world


def ask(world: World, request_seq: int, **changes: object) -> GroupRequested:
    group_id = f"{request_seq:08d}-0-0"
    sample = a_sample(f"math:1:{request_seq}", difficulty=float(request_seq))
    request = a_request(group_id, size=SIZE, sample=sample, **changes)
    world.say(request)
    return request


def answer(world: World, request: GroupRequested, *, version: int) -> int:
    """Generated and verified; the sequence in VERIFIED."""
    verified = a_verified(request, version=version)
    world.say(a_generated(request, generations=verified.generations))
    return world.say(verified)


def admit(world: World, requests: Sequence[GroupRequested], *, window: int, version: int) -> None:
    places = [answer(world, request, version=version) for request in requests]
    for index, (request, place) in enumerate(zip(requests, places, strict=True)):
        world.say(
            an_annotated(
                request,
                window=window,
                window_size=len(requests),
                window_index=index,
                version=version,
                verified_seq=place,
                cut=places[-1],
            )
        )


def drop(world: World, request: GroupRequested) -> None:
    place = answer(world, request, version=0)
    world.say(undecided(request, "dropped", "filtered:equal", place))


def fail(world: World, request: GroupRequested) -> None:
    failed = {"status": "failed", "reason": "engine: out of memory", "generations": ()}
    world.say(a_generated(request, **failed))
    place = world.say(a_verified(request, **failed, verdicts=()))
    world.say(undecided(request, "failed", "engine: out of memory", place))


def commit(
    world: World,
    step: int,
    *,
    version: int,
    groups: Sequence[GroupRequested],
    staleness: int = 0,
    stale: GroupRequested | None = None,
) -> None:
    planned = [
        PlannedGroup(
            group_id=group.group.group_id,
            domain="math",
            stream_seq=10 * step + index,
            staleness=staleness,
        )
        for index, group in enumerate(groups)
    ]
    dropped = (
        ()
        if stale is None
        else (
            DroppedGroup(group_id=stale.group.group_id, stream_seq=99, reason="stale", staleness=3),
        )
    )
    world.say(
        StepPlanned(
            **COMMON, step=step, version=version, groups=tuple(planned), dropped=dropped, cursor=0
        ),
        StepCommitted(
            **COMMON,
            step=step,
            status="trained",
            version=version + 1,
            digest=f"d{version + 1}",
            metrics={
                "groups": float(len(groups)),
                "generations": float(SIZE * len(groups)),
                "tokens": float(SIZE * TOKENS * len(groups)),
                "reward_mean": 0.5,
                "reward/math": 0.5,
                "loss": 0.1,
                "staleness_max": float(staleness),
                "grad_norm": None,
            },
        ),
        weights(version + 1, step=step),
        CheckpointWritten(
            **COMMON, step=step, version=version + 1, uri="file:c", digest="d", cursor=1
        ),
    )


def evaluate(world: World, *, version: int, first_seq: int) -> None:
    """Two items measured, one failed: the benchmark has no score."""
    items, missing = [], []
    for index, score in enumerate((1.0, 0.0, None)):
        group_id = f"v{version:06d}-math-{index:05d}-0"
        key = a_key(group_id, purpose="eval", request_seq=first_seq + index)
        sample = a_sample(f"math:1:{900 + index}")
        request = a_request(group=key, size=1, sample=sample, mixture=None, benchmark="math")
        world.say(request)
        if score is None:
            failed = {"status": "failed", "reason": "grader broken", "verdicts": ()}
            world.say(a_generated(request))
            world.say(a_verified(request, (0.0,), **failed))
            missing.append(sample.key)
        else:
            world.say(a_generated(request), a_verified(request, (score,)))
        items.append(
            EvaluationItem(sample_key=sample.key, group_id=group_id, domain="math", score=score)
        )
    world.say(
        EvaluationFinished(
            **COMMON,
            version=version,
            step=0,
            benchmark="math",
            items=3,
            score=None,
            missing=tuple(missing),
            scores=tuple(items),
        )
    )


def supervise(world: World) -> None:
    changes = (
        ("labeled", None, "true"),
        ("visits", None, "1"),
        ("visits", "1", "2"),
        ("solve_rate", None, "0.25"),
        ("target", None, "4"),
        ("status", None, "learning"),
    )
    for name, old, new in changes:
        world.say(supervision("math:1:4", name, old, new))


def end(world: World, *still_open: GroupRequested) -> None:
    world.say(
        RunDraining(
            **COMMON,
            reason="all steps taken",
            open_groups=tuple(request.group.group_id for request in still_open),
        )
    )
    lasts = {str(log): len(events) for log, events in world.logs.items()}
    world.say(RunEnded(**COMMON, reason="all steps taken", status="finished", last_sequences=lasts))
