"""Requests training groups as pacing allows: retries before new draws, or whole cohorts."""

from broker.bus import Bus
from broker.errors import Poison, Replaced
from broker.messages import GroupRequested, Incident, MixtureUpdated
from broker.settings import RunSettings
from broker.telemetry import now_us
from broker.topology import Log
from workers.dispatcher import pacing
from workers.dispatcher.groups import Bundle
from workers.dispatcher.outbox import Outbox
from workers.dispatcher.requests import BUNDLE_SIZE, Place, RequestBuilder, as_cohort
from workers.dispatcher.state import SAMPLE_SKIPPED, State

AT_ONCE = 16
"""Bundles requested in one batch: they come to the rollout together, which is cheaper for every stage."""


class Training:
    def __init__(
        self, bus: Bus, state: State, outbox: Outbox, builder: RequestBuilder, run: RunSettings
    ) -> None:
        self._bus = bus
        self._state = state
        self._outbox = outbox
        self._builder = builder
        self._run = run

    @property
    def exhausted(self) -> bool:
        """No retry is due and no source with a share has a sample left."""
        state = self._state
        if state.mixture is None or state.groups.retries():
            return False
        return self._builder.exhausted(self._place(state.mixture))

    async def request(self, *, at_most: int | None = None) -> None:
        """As many as may be under way, until something more urgent comes up.

        at_most: so many bundles; a cohort is always whole.
        """
        if self._state.mixture is None or self._state.published is None:
            return
        if self._run.deterministic:
            await self._request_cohort(self._state.mixture)
            return
        # Counted once: groups that end while we publish are replaced after a look at what else is due.
        room = self._room() if at_most is None else min(self._room(), at_most)
        for first in range(0, room, AT_ONCE):
            if self.interrupted():
                return
            requests = await self._gather(self._state.mixture, min(AT_ONCE, room - first))
            if not requests or not await self._outbox.requests(requests, give_up=self.interrupted):
                return

    def interrupted(self) -> bool:
        """An end of the run is due, which no pause may delay."""
        state = self._state
        return state.life.is_draining or state.life.stop_requested or state.step >= self._run.steps

    def _room(self) -> int:
        return pacing.room(
            outstanding=self._state.groups.outstanding,
            pace=self._run.pace_steps,
            bundles_per_step=self._run.groups_per_step // BUNDLE_SIZE,
            steps_left=self._run.steps - self._state.step,
        )

    def _place(self, mixture: MixtureUpdated) -> Place:
        state = self._state
        return Place(state.request_seq, state.counters, mixture, state.version)

    async def _request_cohort(self, mixture: MixtureUpdated) -> None:
        """The groups that the open window lacks, once nothing that could fill it is undecided."""
        state, cohort = self._state, self._state.cohort
        if cohort.lacking:
            # The run went on waiting for all of it, so these are the ones that were meant.
            rest = await self._gather(mixture, cohort.lacking)
            rest = as_cohort(rest, cohort.number, size=cohort.size)
            if await self._outbox.requests(rest, give_up=self.interrupted):
                cohort.lacking = 0
            return
        undecided = not cohort.decided and state.groups.outstanding > 0
        if undecided or state.groups.in_windows > 0:
            return
        requests = await self._gather(mixture, self._room())
        if requests:
            requests = as_cohort(requests, cohort.number + 1, size=len(requests))
            await self._outbox.requests(requests, give_up=self.interrupted)

    async def _gather(self, mixture: MixtureUpdated, bundles: int) -> list[GroupRequested]:
        """Requests of the next so many bundles; fewer when the sources are exhausted."""
        place, retries = self._place(mixture), self._state.groups.retries()
        gathered: list[GroupRequested] = []
        for _ in range(bundles):
            requests = await self._next(place, retries)
            retries = retries[1:]
            if not requests:
                break
            gathered += requests
            place = Place(
                requests[-1].group.request_seq, requests[-1].mixture, mixture, place.version
            )
        return gathered

    async def _next(self, place: Place, retries: list[Bundle]) -> list[GroupRequested]:
        """One bundle's requests: the oldest retry, or else the next draw; empty when exhausted."""
        while retries:
            try:
                return await self._again(place, retries[0])
            except Poison as error:
                self._state.groups.give_up(retries.pop(0), f"its request cannot be read: {error}")
        drawn = self._builder.draw(place, at_us=now_us())
        return [drawn] if drawn is not None else []

    async def _again(self, place: Place, bundle: Bundle) -> list[GroupRequested]:
        """Requests for the samples of a bundle that is to be retried. Poison when one is unreadable."""
        requests: list[GroupRequested] = []
        for group in sorted(bundle.groups.values(), key=lambda group: group.request_seq):
            original = await self._original(group.sequence)
            requests.append(self._builder.retry(original, place, at_us=now_us()))
            place = Place(
                requests[-1].group.request_seq, requests[-1].mixture, place.mixture, place.version
            )
        return requests

    async def _original(self, sequence: int) -> GroupRequested:
        stored = await self._bus.get(Log.REQUESTS, sequence)
        event = stored.event() if stored is not None else None
        if not isinstance(event, GroupRequested):
            # Nothing is purged before its retry is requested, except by another dispatcher.
            raise Replaced(
                f"dispatcher: request at {sequence} in REQUESTS is gone before its retry"
            )
        return event

    async def report_given_up(self) -> None:
        """An incident for each sample that used up its attempts."""
        for bundle in self._state.groups.given_up():
            group_id, attempts = min(bundle.groups), bundle.attempt + 1
            await self._outbox.ledger(
                Incident(
                    writer_id=self._outbox.writer_id,
                    at_us=now_us(),
                    kind=SAMPLE_SKIPPED,
                    role="dispatcher",
                    detail=f"gave up after {attempts} attempts, the last: {', '.join(bundle.ends)}",
                    group_id=group_id,
                ),
                expect_subject=None,
            )
            self._state.groups.reported(group_id)
