"""Reads the logs into the state: to their end at start, then on and on."""

import asyncio
import time
from collections.abc import Callable, Sequence

import structlog

from broker.bus import Bus, Cursor, Stored
from broker.errors import Poison, SluiceError, TooLong
from broker.messages import GroupRequested
from broker.telemetry import Health
from broker.topology import Log, is_unretained, kind_subjects
from workers.dispatcher.newest import lacking_of_cohort, newest_train_request
from workers.dispatcher.state import State

READ_LIMIT = 500
READ_WAIT_S = 1.0
END_LIMIT_S = 120.0
"""Without any message for so long, a log that has more cannot be read."""

log = structlog.get_logger()


class Follower:
    """One log's cursor, applied to the state in order."""

    def __init__(self, name: Log, cursor: Cursor, apply: Callable[[Stored], None]) -> None:
        self._name = name
        self._cursor = cursor
        self._apply = apply

    @property
    def position(self) -> int:
        return self._cursor.position

    async def read(self) -> bool:
        """Apply what comes within a second; whether anything came."""
        found = await self._cursor.read(READ_LIMIT, READ_WAIT_S)
        for stored in found:
            try:
                self._apply(stored)
            except (KeyError, ValueError) as error:
                # Not written by a stage of this program: it can end no group of ours.
                log.warning(
                    "message ignored", log=self._name, sequence=stored.sequence, reason=repr(error)
                )
        return bool(found)

    async def read_to(self, end: int, health: Health) -> None:
        """Apply everything up to a sequence that is known to be stored."""
        heard = time.monotonic()
        with health.waiting_for(f"{self._name} read to {end}", END_LIMIT_S):
            while self.position < end:
                health.beat()
                if await self.read():
                    heard = time.monotonic()
                elif time.monotonic() - heard > END_LIMIT_S:
                    raise TooLong(
                        f"{self._name}: read to {self.position} of {end}, then nothing for {END_LIMIT_S} s"
                    )

    async def close(self) -> None:
        await self._cursor.close()


class Followers:
    """The logs that tell of ends, steps and results."""

    def __init__(self, annotated: Follower, ledger: Follower, verified: Follower) -> None:
        self.annotated, self.ledger, self.verified = annotated, ledger, verified
        self.news = asyncio.Event()
        """Set whenever something was applied."""

    async def follow(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for follower in (self.annotated, self.ledger, self.verified):
                group.create_task(self._follow(follower))

    async def _follow(self, follower: Follower) -> None:
        while True:
            if await follower.read():
                self.news.set()

    async def any_news(self, wait_s: float) -> None:
        """Returns as soon as something was applied, at the latest after `wait_s`."""
        try:
            async with asyncio.timeout(wait_s):
                await self.news.wait()
        except TimeoutError:
            return
        self.news.clear()

    async def until_ledger(self, sequence: int) -> None:
        """Returns when LEDGER is applied up to a sequence; the caller sets the limit."""
        while self.ledger.position < sequence:
            await self.any_news(READ_WAIT_S)

    async def close(self) -> None:
        for follower in (self.annotated, self.ledger, self.verified):
            await follower.close()


def _apply_ledger(state: State, stored: Stored) -> None:
    if is_unretained(stored.subject):
        return  # what shadow policies say is nothing to the dispatcher, and there is much of it
    try:
        event = stored.event()
    except Poison as error:
        # Whoever wrote it speaks another version; what it says cannot be part of what we know.
        log.warning("ledger message ignored", sequence=stored.sequence, reason=str(error))
        return
    state.apply_ledger(event, stored.sequence)


async def catch_up(bus: Bus, state: State, health: Health) -> Followers:
    """Fold the logs to their present ends; the followers go on from there."""
    requests = await _follower(bus, Log.REQUESTS, state.apply_request)
    try:
        await requests.read_to(await _end(bus, Log.REQUESTS), health)
    finally:
        await requests.close()
    # Sequences go on even when every message before has been purged.
    state.sequence = (await bus.state(Log.REQUESTS)).last
    newest = await newest_train_request(bus)
    _refuse_to_draw_again(state, newest)
    if newest is not None:
        state.apply_train_request(newest)
        if newest.cohort is not None:
            state.cohort.lacks(await lacking_of_cohort(bus, newest))
    ledger = await _follower(
        bus, Log.LEDGER, lambda stored: _apply_ledger(state, stored), headers_only=False
    )
    await ledger.read_to(await _end(bus, Log.LEDGER), health)
    annotated = await _follower(bus, Log.ANNOTATED, state.apply_annotated)
    await annotated.read_to(await _end(bus, Log.ANNOTATED), health)
    state.close_ended_runs()
    measured = tuple(kind_subjects(bus.run, "group_verified", p) for p in ("eval", "probe"))
    verified = await _follower(bus, Log.VERIFIED, state.apply_verified, measured)
    return Followers(annotated, ledger, verified)


def _refuse_to_draw_again(state: State, newest: GroupRequested | None) -> None:
    """The newest request must hold the counters as of the last draw: older ones draw what was drawn."""
    counters = newest.mixture if newest is not None else None
    known = sum(counters.positions.values()) if counters is not None else 0
    if known < state.last_draw:
        raise SluiceError(
            f"REQUESTS holds draw {state.last_draw}, but the newest train request that can be read "
            f"knows of {known}: expected logs that this version of the program has written"
        )


async def _follower(
    bus: Bus,
    name: Log,
    apply: Callable[[Stored], None],
    subjects: Sequence[str] = (),
    *,
    headers_only: bool = True,
) -> Follower:
    return Follower(name, await bus.cursor(name, 0, subjects, headers_only=headers_only), apply)


async def _end(bus: Bus, name: Log) -> int:
    """Sequence of the last message that is kept; 0 when none is."""
    found = await bus.state(name)
    return found.last if found.messages else 0
