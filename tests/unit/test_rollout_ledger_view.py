"""The rollout's view of the LEDGER is right from its first look."""

import asyncio
from contextlib import suppress

from broker.memory import MemoryBus
from broker.memory_state import MemoryServer
from broker.messages import WeightsPublished
from tests.builders import AT_US, WRITER
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
