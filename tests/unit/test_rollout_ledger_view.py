"""The rollout's view of the LEDGER is right from its first look."""

import asyncio
from contextlib import suppress

from broker.memory import MemoryBus
from broker.memory_state import MemoryServer
from broker.messages import MixtureUpdated, RunDraining, StepCommitted, WeightsPublished
from broker.topology import Log
from tests.builders import AT_US, WRITER
from tests.store_events import started
from workers.rollout.ledger_view import LedgerView


async def test_a_restart_on_a_long_ledger_sees_the_newest_weights_first():
    bus = MemoryBus(MemoryServer(), "run")
    for version in range(600):
        await bus.publish(
            WeightsPublished(
                writer_id=WRITER, at_us=AT_US, version=version, step=version, digest="d",
                uri="file:w", bytes=1,
            )
        )  # fmt: skip
    ledger = LedgerView(bus)
    seen: list[int] = []

    def newest_is_known() -> bool:
        if ledger.newest is not None:
            seen.append(ledger.newest.version)
        return bool(seen)

    following = asyncio.create_task(ledger.follow())
    await ledger.until(newest_is_known, "weights", 5.0)
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following

    assert seen[0] == 599


async def test_a_run_drains_from_when_it_is_told_to_until_it_is_resumed():
    bus, seen = MemoryBus(MemoryServer(), "run"), list[bool]()
    ledger = LedgerView(bus)
    drains = RunDraining(writer_id=WRITER, at_us=AT_US, reason="finished", open_groups=("1-0-0",))
    for event in (started(), drains, started(resumed=True)):
        stored = await bus.get(Log.LEDGER, await bus.publish(event))
        assert stored is not None
        ledger.fold(stored)
        seen.append(ledger.draining)

    assert seen == [False, True, False]


async def test_a_window_is_untrained_from_when_it_is_full_until_its_step_is_committed():
    bus, seen = MemoryBus(MemoryServer(), "run"), list[bool]()
    common = {"writer_id": WRITER, "at_us": AT_US}
    ledger = LedgerView(bus)

    def full(window: int) -> MixtureUpdated:
        numbers = {"update_no": window, "window": window, "step": 0, "request_seq": 0, "cut": 0}
        return MixtureUpdated(**common, **numbers, mixer="static", domains=(), reason="")

    def trained(step: int) -> StepCommitted:
        what = {"step": step, "status": "trained", "version": step, "digest": "d", "metrics": {}}
        return StepCommitted(**common, **what)

    for event in (full(0), full(1), trained(1), full(2), full(3), trained(2), trained(3)):
        sequence = await bus.publish(event)
        stored = await bus.get(Log.LEDGER, sequence)
        assert stored is not None
        ledger.fold(stored)
        seen.append(ledger.has_untrained)

    assert seen == [False, True, False, True, True, True, False]
