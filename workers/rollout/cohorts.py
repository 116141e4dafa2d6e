"""Deterministic mode: whole cohorts, in request order, one batch on an otherwise empty engine.

All answers of a cohort are stored together or not at all, so after a crash it is decoded again just so; also
when a full server has kept the first of them.
"""

import asyncio
from collections.abc import Sequence

import structlog

from broker.bus import Bus, Delivery
from broker.errors import Conflict, Poison, Retry
from broker.messages import GroupGenerated, GroupRequested
from broker.topology import MAX_DELIVERIES, ROLLOUT_TRAIN, Log, group_subject
from workers.rollout.answers import Group
from workers.rollout.engine import EngineError, Job, Refused, Result
from workers.rollout.service import Service, expect_request

FETCH_WAIT_S = 0.5
FETCH_LIMIT = 1000
STOP_WAIT_S = 5.0

log = structlog.get_logger()


class Cohorts:
    """Collects the deliveries of cohorts until one is complete."""

    def __init__(self) -> None:
        self._members: dict[int, dict[int, tuple[GroupRequested, Delivery]]] = {}
        """By cohort and request_seq; a redelivered request replaces the earlier delivery."""

    @property
    def deliveries(self) -> list[Delivery]:
        return [delivery for members in self._members.values() for _, delivery in members.values()]

    def add(self, request: GroupRequested, delivery: Delivery) -> None:
        """Raises Poison for a request that belongs to no cohort."""
        if request.cohort is None or request.cohort_size is None:
            raise Poison(
                f"group {request.group.group_id} has no cohort; deterministic runs decode cohorts"
            )
        members = self._members.setdefault(request.cohort, {})
        members[request.group.request_seq] = (request, delivery)

    def complete(self) -> list[tuple[GroupRequested, Delivery]] | None:
        """The lowest complete cohort, in request order; None when none is."""
        for cohort in sorted(self._members):
            members = self._members[cohort]
            if len(members) == next(iter(members.values()))[0].cohort_size:
                return [members[seq] for seq in sorted(members)]
        return None

    def forget(self, request: GroupRequested) -> None:
        if request.cohort is not None:
            self._members.pop(request.cohort, None)


class CohortWorker:
    def __init__(self, bus: Bus, service: Service) -> None:
        self._bus = bus
        self._service = service
        self._cohorts = Cohorts()

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; a cohort that is not done within STOP_WAIT_S of it is handed back whole."""
        consumer = await self._bus.consumer(ROLLOUT_TRAIN)
        heartbeat = asyncio.create_task(self._heartbeat())
        try:
            while not stop.is_set():
                self._service.health.beat()
                with self._service.health.waiting_for("a complete cohort", None):
                    for delivery in await consumer.fetch(FETCH_LIMIT, FETCH_WAIT_S):
                        await self._take(delivery)
                members = self._cohorts.complete()
                if members is not None:
                    await self._finish_unless(stop, members)
        finally:
            heartbeat.cancel()
            for delivery in self._cohorts.deliveries:
                await delivery.retry(0.0)
            await consumer.close()

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(ROLLOUT_TRAIN.ack_wait_s / 3)
            for delivery in self._cohorts.deliveries:
                await delivery.progress()

    async def _take(self, delivery: Delivery) -> None:
        request = expect_request(delivery.stored.event())
        # An acknowledgement can be lost in a crash: then a part of a finished cohort comes again.
        ended = self._service.has_ended(request)
        if ended or (
            await self._is_stored(request)
            and await self._is_stored(await self._last_of_cohort(request, delivery.stored.sequence))
        ):
            await delivery.ack()
        else:
            self._cohorts.add(request, delivery)

    async def _is_stored(self, output: GroupRequested | GroupGenerated) -> bool:
        subject = group_subject(self._bus.run, GroupGenerated.KIND, output.group)
        return await self._bus.last(Log.GENERATED, subject) is not None

    async def _last_of_cohort(self, request: GroupRequested, sequence: int) -> GroupRequested:
        """The newest request of its cohort, of whose answers a full server may have kept the first ones."""
        last = request
        while (stored := await self._bus.get(Log.REQUESTS, sequence + 1)) is not None:
            sequence += 1
            try:
                following = expect_request(stored.event())
            except Poison:
                continue  # a stranger's
            if following.cohort is None:
                continue  # an evaluation
            if following.cohort != request.cohort:
                break
            last = following
        return last

    async def _finish_unless(
        self, stop: asyncio.Event, members: Sequence[tuple[GroupRequested, Delivery]]
    ) -> None:
        work = asyncio.create_task(self._finish(members))
        stopping = asyncio.create_task(stop.wait())
        try:
            while not work.done() and not stopping.done():
                self._service.health.beat()
                await asyncio.wait(
                    (work, stopping), timeout=FETCH_WAIT_S, return_when=asyncio.FIRST_COMPLETED
                )
            await asyncio.wait((work,), timeout=STOP_WAIT_S)
        finally:
            stopping.cancel()
            work.cancel()
            await asyncio.wait((work,))
        if not work.cancelled():
            work.result()

    async def _finish(self, members: Sequence[tuple[GroupRequested, Delivery]]) -> None:
        service = self._service
        requests = [request for request, _ in members]
        version = max(request.requested_version for request in requests)
        try:
            await service.newest.at_least(version, service.weights_wait_s, service.health)
        except Retry as error:
            log.warning("cohort_waits", cohort=requests[0].cohort, reason=str(error))
            return
        events = await self._answer(requests)
        await self._publish(events)
        for event, (_, delivery) in zip(events, members, strict=True):
            if event.status == "failed":
                await self._bus.dead_letter(delivery.stored, event.reason)
            await delivery.ack()
        self._cohorts.forget(requests[0])

    async def _publish(self, events: Sequence[GroupGenerated]) -> None:
        """What of a cohort nobody has published yet: mostly all of it or nothing."""
        while events:
            try:
                await self._bus.publish_batch(events)
                return
            except Conflict:
                lacking = [event for event in events if not await self._is_stored(event)]
                if len(lacking) == len(events):
                    raise  # refused for another reason than what is stored
                events = lacking
                log.info("cohort_stored_already", lacking=len(lacking))

    async def _answer(self, requests: Sequence[GroupRequested]) -> list[GroupGenerated]:
        group = self._service.group
        jobs = [_job(group, request) for request in requests]
        try:
            answered = iter(await self._generate([job for job in jobs if isinstance(job, Job)]))
        except EngineError as error:
            return [group.failed(r.group, r, str(error)) for r in requests]
        results = [job if isinstance(job, Refused) else next(answered) for job in jobs]
        return [_event(group, r, result) for r, result in zip(requests, results, strict=True)]

    async def _generate(self, jobs: Sequence[Job]) -> list[Result]:
        """Raises EngineError when the engine broke each of so many times."""
        for attempt in range(1, MAX_DELIVERIES):
            try:
                return await self._service.engine.generate(jobs)
            except EngineError as error:
                log.warning("engine_failed", attempt=attempt, reason=str(error))
                await asyncio.sleep(float(attempt))
        return await self._service.engine.generate(jobs)


def _job(group: Group, request: GroupRequested) -> Job | Refused:
    try:
        return group.job(request)
    except Poison as error:
        return Refused(str(error))


def _event(group: Group, request: GroupRequested, result: Result) -> GroupGenerated:
    try:
        return group.generated(request, result)
    except Poison as error:
        return group.failed(request.group, request, str(error))
