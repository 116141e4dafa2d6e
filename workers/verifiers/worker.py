"""The verifier role: answers in, verdicts out, joined by the answer's own index.

A group whose generation failed is passed on as failed. A group for which the verifier itself is broken fails:
it is replaced by a new one, and never rewarded with 0.
"""

import asyncio
import collections
from collections.abc import Sequence
from contextlib import suppress

import structlog
from prometheus_client import Counter

from broker.bus import Bus
from broker.codec import encode
from broker.errors import Poison, Retry, Unasked
from broker.messages import (
    Event,
    GroupGenerated,
    GroupKey,
    GroupRequested,
    GroupVerified,
    Incident,
    LogPurged,
    RunEnded,
    RunStarted,
    Verdict,
)
from broker.serve import serve
from broker.telemetry import Health, now_us, writer_id
from broker.topology import VERIFIER, Log, group_subject, kind_subjects
from workers.verifiers import canaries
from workers.verifiers.calls import Graded
from workers.verifiers.intake import refuse_mistaken
from workers.verifiers.pool import Pool
from workers.verifiers.protocol import Finding, GraderBroken
from workers.verifiers.settings import VerifierSettings

log = structlog.get_logger()

verdicts_total = Counter(
    "sluice_verdicts_total", "Verdicts by verifier and status.", ["verifier", "status"]
)
POLL_S = 1.0


async def run(bus: Bus, *, settings: VerifierSettings, health: Health, stop: asyncio.Event) -> None:
    """Judge groups until `stop` is set or the run has ended. Raises GraderBroken when a canary differs."""
    me = writer_id("verifier")
    async with Pool(
        size=settings.pool, deadline_s=settings.deadline_s, memory_bytes=settings.memory_bytes
    ) as pool:
        health.note(canaries=await canaries.check(pool))
        ledger = Ledger()

        async def handle(event: Event) -> Sequence[Event]:
            if ledger.is_over(event):
                return []
            answers = answers_in(event)
            asked = await asked_for(bus, answers)
            if asked is None:
                return await ledger.refuse_unasked(bus, event, me)
            return [await verified(answers, asked, pool, me)]

        def fail(group: GroupKey, event: Event | None, reason: str) -> Event:
            # What the event says was asked may be what is wrong with it.
            return failed(group, event, None, reason, me)

        async with asyncio.TaskGroup() as tasks:
            watch = tasks.create_task(ledger.follow(bus, stop))
            try:
                await serve(
                    bus,
                    VERIFIER,
                    handle,
                    fail=fail,
                    slots=settings.slots,
                    health=health,
                    stop=ledger.done,
                )
            finally:
                watch.cancel()


class Ledger:
    """What the run's ledger says that this role must know."""

    def __init__(self) -> None:
        self.done = asyncio.Event()
        """Set when told to stop, or when the run has ended: what is judged later counts for nobody."""
        self._floor = 0

    def is_over(self, event: Event) -> bool:
        """Whether the group was purged: its output could be stored twice, and nobody waits for it."""
        group = getattr(event, "group", None)
        return isinstance(group, GroupKey) and group.request_seq <= self._floor

    async def refuse_unasked(self, bus: Bus, event: Event, me: str) -> list[Event]:
        """Nothing, if its request was purged meanwhile; Unasked and an incident, if there never was one."""
        await self._read_floor(bus)
        if self.is_over(event):
            return []
        group = getattr(event, "group", None)
        reason = f"nobody asked for group {getattr(group, 'group_id', None)}"
        await bus.publish(
            Incident(
                writer_id=me, at_us=now_us(), kind="unasked_group", role="verifier", detail=reason
            )
        )
        raise Unasked(reason)

    async def follow(self, bus: Bus, stop: asyncio.Event) -> None:
        while not stop.is_set() and not await self._ended(bus):
            await self._read_floor(bus)
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), POLL_S)
        self.done.set()

    async def _read_floor(self, bus: Bus) -> None:
        purged = await bus.last(Log.LEDGER, kind_subjects(bus.run, LogPurged.KIND))
        event = purged.event() if purged else None
        if isinstance(event, LogPurged):
            self._floor = event.floor

    async def _ended(self, bus: Bus) -> bool:
        ended = await bus.last(Log.LEDGER, kind_subjects(bus.run, RunEnded.KIND))
        started = await bus.last(Log.LEDGER, kind_subjects(bus.run, RunStarted.KIND))
        return ended is not None and (started is None or started.sequence < ended.sequence)


def answers_in(event: Event) -> GroupGenerated:
    """The event, which must be of the kind that a verifier reads. Raises Poison."""
    if not isinstance(event, GroupGenerated):
        raise Poison(f"{event.KIND}: a verifier reads group_generated")
    return event


async def asked_for(bus: Bus, event: GroupGenerated) -> GroupRequested | None:
    """The request of the event's group in the log; None: there is none."""
    subject = group_subject(bus.run, GroupRequested.KIND, event.group)
    stored = await bus.last(Log.REQUESTS, subject)
    if stored is None:
        return None
    if event.request is not None and encode(event.request) == stored.data:
        return event.request  # as nearly always: quicker than reading it again
    asked = stored.event()
    return asked if isinstance(asked, GroupRequested) else None


async def verified(
    event: GroupGenerated, asked: GroupRequested, pool: Pool, me: str
) -> GroupVerified:
    """One group's verdicts, by the request that the log holds."""
    refuse_mistaken(event, asked)
    if event.status == "failed" or event.request is None:
        return failed(event.group, event, asked, event.reason or "no request", me)
    sample = asked.sample
    try:
        graded = await pool.grade(
            sample.verifier,
            sample.target,
            {generation.index: generation.text for generation in event.generations},
            sample.options,
        )
    except GraderBroken as error:
        raise Retry(str(error)) from error
    if graded.broken:
        return failed(event.group, event, asked, f"verifier: {graded.broken}", me)
    verdicts = tuple(verdict(generation.index, graded) for generation in event.generations)
    for (verifier, status), times in collections.Counter(
        (v.verifier, v.status) for v in verdicts
    ).items():
        verdicts_total.labels(verifier, status).inc(times)
    broken = [v for v in verdicts if v.status in ("verifier_error", "timeout")]
    if broken and len(broken) == len(verdicts):
        return failed(
            event.group, event, asked, f"verifier: {broken[0].status}: {broken[0].detail}", me
        )
    return GroupVerified(
        writer_id=me,
        at_us=now_us(),
        group=event.group,
        status="ok",
        request=asked,
        generations=event.generations,
        verdicts=verdicts,
        engine=event.engine,
        worker=event.worker,
    )


def verdict(index: int, graded: Graded) -> Verdict:
    """The verdict on one answer, found by its index."""
    finding = graded.findings[index]
    return Verdict(
        index=index,
        status=finding.status,
        score=finding.score,
        extracted=finding.extracted,
        answer_key=finding.answer_key,
        answer_class=graded.classes.of.get(index),
        components=dict(finding.components),
        detail=_detail(finding, unresolved=index in graded.classes.unresolved),
        verifier=graded.verifier,
        verifier_version=graded.version,
        latency_ms=graded.latency_ms.get(index, 0.0),
    )


def _detail(finding: Finding, *, unresolved: bool) -> str:
    flag = "class unresolved" if unresolved else ""
    return "; ".join(filter(None, (finding.detail, flag)))


def failed(
    group: GroupKey, event: Event | None, asked: GroupRequested | None, reason: str, me: str
) -> GroupVerified:
    """The group ends here, with the reason; what was generated is not carried on."""
    generated = event if isinstance(event, GroupGenerated) else None
    return GroupVerified(
        writer_id=me,
        at_us=now_us(),
        group=group,
        status="failed",
        reason=reason,
        request=asked,
        generations=(),
        verdicts=(),
        engine=generated.engine if generated else "",
        worker=generated.worker if generated else "",
    )
