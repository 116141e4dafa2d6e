"""Publishes as the run's one dispatcher: every publication is compare-and-set, a rival is noticed.

A request that waits for space in its log can be given up, so that the end of a run need not wait
for it; whether it was stored after all is then read back.
"""

import asyncio
from collections.abc import Callable, Sequence

from broker.bus import Bus, Stored
from broker.errors import Conflict, Replaced
from broker.messages import Event, GroupRequested
from broker.topology import H_GROUP, H_WRITER, Log, headers, kind_subjects, subject
from workers.dispatcher.state import State

SLOW_S = 0.5
"""How often a publication that takes long is asked whether it may be given up."""


class Outbox:
    def __init__(self, bus: Bus, state: State, *, writer_id: str) -> None:
        self._bus = bus
        self._state = state
        self.writer_id = writer_id

    async def ledger(self, event: Event, *, expect_subject: int | None) -> int:
        """Store a run event; returns its sequence. Raises Replaced when somebody else was first."""
        try:
            return await self._bus.publish(event, expect_subject=expect_subject)
        except Conflict as conflict:
            last = await self._bus.last(Log.LEDGER, subject(self._bus.run, event))
            if last is None or not self._is(last, event):
                raise Replaced(f"dispatcher: {conflict}") from conflict
            return last.sequence

    async def requests(
        self, requests: Sequence[GroupRequested], *, give_up: Callable[[], bool]
    ) -> bool:
        """Store requests, all or none; False when given up.

        They are folded into the state first, since their ends may be read before the broker's
        answer; compare-and-set fixes their sequences.
        """
        before = self._state.mark
        task = asyncio.ensure_future(self._store(requests, expect_log=self._state.sequence))
        self._fold(requests)
        try:
            await asyncio.wait({task}, timeout=SLOW_S)
            while not task.done() and not give_up():
                await asyncio.wait({task}, timeout=SLOW_S)
        finally:
            if not task.done():
                task.cancel()
        if not task.cancelling():
            await task
            return True
        if await self._was_stored(requests, task):
            return True
        self._state.withdraw(requests, before)
        return False

    async def _store(self, requests: Sequence[GroupRequested], *, expect_log: int) -> None:
        try:
            if len(requests) == 1:
                await self._bus.publish(requests[0], expect_log=expect_log)
            else:
                await self._bus.publish_batch(requests, expect_log=expect_log)
        except Conflict as conflict:
            last = await self._last_request()
            if last is None or not self._is(last, requests[-1]):
                raise Replaced(f"dispatcher: {conflict}") from conflict

    async def _was_stored(
        self, requests: Sequence[GroupRequested], cancelled: asyncio.Task[None]
    ) -> bool:
        """Whether a cancelled publication had been stored before."""
        await asyncio.wait({cancelled})
        last = await self._last_request()
        return last is not None and self._is(last, requests[-1])

    async def _last_request(self) -> Stored | None:
        return await self._bus.last(Log.REQUESTS, kind_subjects(self._bus.run, GroupRequested.KIND))

    def _is(self, stored: Stored, event: Event) -> bool:
        """Whether a stored message is ours and says what `event` says of its group."""
        return stored.headers.get(H_WRITER) == self.writer_id and (
            stored.headers.get(H_GROUP) == headers(event).get(H_GROUP)
        )

    def _fold(self, requests: Sequence[GroupRequested]) -> None:
        for sequence, request in enumerate(requests, start=self._state.sequence + 1):
            self._state.apply_request(
                Stored(
                    log=Log.REQUESTS,
                    sequence=sequence,
                    subject=subject(self._bus.run, request),
                    headers=headers(request),
                    data=b"",
                    stored_at_us=request.at_us,
                )
            )
            if request.group.purpose == "train":
                self._state.apply_train_request(request)
