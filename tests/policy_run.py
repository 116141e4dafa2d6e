"""The policy role over a bus, in tests: filling logs, running it, reading what it decided."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from broker.bus import Bus, Stored
from broker.memory import MemoryBus, MemoryServer
from broker.messages import (
    Event,
    GroupAnnotated,
    GroupVerified,
    MixtureUpdated,
    RunDraining,
    RunEnded,
    RunStarted,
)
from broker.settings import RunSettings
from broker.telemetry import Health
from broker.topology import Log, kind_subjects
from tests.builders import AT_US, WRITER
from tests.policy_builders import a_group_event
from workers.policies import worker
from workers.policies.settings import PolicySettings

MIXED, SOLVED = (1.0, 0.0), (1.0, 1.0)
SHARES = {"math": 1.0, "logic": 1.0}
SETTINGS = PolicySettings(admit=("dynamic_sampling",), refill_rounds=3)


def run_settings(**changes: object) -> RunSettings:
    fields = {"steps": 9, "groups_per_step": 2, "group_size": 2, "drain_wait_s": 0.3}
    return RunSettings.model_validate(fields | changes)


def a_bus(server: MemoryServer | None = None) -> MemoryBus:
    return MemoryBus(server or MemoryServer(), "r")


def a_start(**changes: object) -> RunStarted:
    return RunStarted(
        writer_id=WRITER, at_us=AT_US, name="r", config="{}", config_sha256="0", seed=0, versions={},
        **changes,  # pyright: ignore[reportArgumentType]
    )  # fmt: skip


def an_end(**sequences: int) -> RunEnded:
    return RunEnded(
        writer_id=WRITER, at_us=AT_US, reason="done", status="finished", last_sequences=sequences
    )


def a_drain(*open_groups: str) -> RunDraining:
    return RunDraining(writer_id=WRITER, at_us=AT_US, reason="done", open_groups=open_groups)


async def work(
    bus: Bus,
    stop: asyncio.Event | None = None,
    *,
    settings: PolicySettings = SETTINGS,
    **changes: object,
) -> None:
    """The role, until it ends."""
    await worker.run(
        bus,
        run=run_settings(**changes),
        settings=settings,
        shares=SHARES,
        health=Health("policy"),
        stop=stop or asyncio.Event(),
    )


class Died(Exception):
    """SIGKILL, as far as a worker in a test is concerned."""


class Mortal:
    """A bus whose owner dies at its n-th publication, before or after it is stored."""

    def __init__(self, bus: MemoryBus, lives: int, *, stored: bool) -> None:
        self._bus, self._lives, self._stored = bus, lives, stored

    def __getattr__(self, name: str) -> object:
        return getattr(self._bus, name)

    async def _publish(self, publication: Callable[[], Awaitable[int]]) -> int:
        self._lives -= 1
        if self._lives < 0:
            raise Died
        if self._lives == 0:
            if self._stored:
                await publication()
            raise Died
        return await publication()

    async def publish(self, event: Event, **expectations: int | None) -> int:
        return await self._publish(lambda: self._bus.publish(event, **expectations))

    async def publish_batch(self, events: Sequence[Event], **expectations: int | None) -> int:
        return await self._publish(lambda: self._bus.publish_batch(events, **expectations))


class Filling(Mortal):
    """A bus whose server is full in the middle of the n-th batch, of which its owner dies."""

    def __init__(self, bus: MemoryBus, batches: int) -> None:
        super().__init__(bus, 0, stored=False)
        self._batches = batches

    async def publish(self, event: Event, **expectations: int | None) -> int:
        return await self._bus.publish(event, **expectations)

    async def publish_batch(self, events: Sequence[Event], **expectations: int | None) -> int:
        self._batches -= 1
        if self._batches > 0:
            return await self._bus.publish_batch(events, **expectations)
        await self._bus.publish_batch(events[:1], **expectations)
        raise Died


async def poll(done: Callable[[], Awaitable[bool]]) -> None:
    while not await done():  # noqa: ASYNC110 - the memory bus has no event for "as expected"
        await asyncio.sleep(0.005)


async def either(done: Callable[[], Awaitable[bool]], task: asyncio.Task[None]) -> bool:
    return task.done() or await done()


async def work_until(
    bus: Bus,
    done: Callable[[], Awaitable[bool]],
    *,
    settings: PolicySettings = SETTINGS,
    **changes: object,
) -> None:
    """The role, until the logs hold what is expected; at most ten seconds."""
    stop = asyncio.Event()
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(work(bus, stop, settings=settings, **changes))
        await poll(lambda: either(done, task))
        stop.set()


async def annotated(bus: Bus) -> list[GroupAnnotated]:
    return [
        e
        for s in await everything(bus, Log.ANNOTATED)
        if isinstance(e := s.event(), GroupAnnotated)
    ]


async def everything(bus: Bus, log: Log) -> list[Stored]:
    state = await bus.state(log)
    cursor = await bus.cursor(log, 0)
    found: list[Stored] = []
    while state.messages and cursor.position < state.last:
        found += await cursor.read(10_000, 1.0)
    await cursor.close()
    return found


async def ledger(bus: Bus, kind: type[Event]) -> list[Event]:
    return [e for s in await everything(bus, Log.LEDGER) if isinstance(e := s.event(), kind)]


def decided(count: int, bus: Bus) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return len(await annotated(bus)) >= count

    return check


async def started(bus: Bus) -> bool:
    return await bus.last(Log.LEDGER, kind_subjects(bus.run, "mixture_updated")) is not None


async def advanced(bus: Bus) -> bool:
    return await bus.last(Log.LEDGER, kind_subjects(bus.run, "reader_advanced")) is not None


def plain(events: Sequence[Event]) -> list[Mapping[str, object]]:
    return [event.model_dump(exclude={"writer_id", "at_us"}) for event in events]


async def outcome(bus: Bus) -> tuple[object, object]:
    """All that a run's logs hold of the policy's decisions, without writers and times."""
    mixtures = [
        m.model_dump(exclude={"writer_id", "at_us", "step"})
        for m in await ledger(bus, MixtureUpdated)
    ]
    return plain(await annotated(bus)), mixtures


LOG = [MIXED, SOLVED, MIXED, SOLVED, SOLVED, MIXED, None, MIXED, SOLVED, MIXED]


def unreadable(event: GroupVerified) -> GroupVerified:
    """As a newer version would write it."""
    return type("Newer", (GroupVerified,), {"SCHEMA": 99}).model_construct(**dict(event))


async def fill(
    bus: Bus,
    *,
    cohorts: bool = False,
    log: Sequence[tuple[float, float] | None] = LOG,
    unreadably: int | None = None,
) -> None:
    """log: scores of each group, None for one that failed. unreadably: one whose message cannot be read."""
    for number, scores in enumerate(log, start=1):
        # Cohorts of two, which the windows of two fit.
        cohort = ((number + 1) // 2, 2) if cohorts else None
        event = a_group_event(number, scores or MIXED, failed=scores is None, cohort=cohort)
        if unreadably is not None and event.request is not None:
            await bus.publish(event.request)
        await bus.publish(unreadable(event) if number == unreadably else event)
