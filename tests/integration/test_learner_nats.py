"""The learner on a real server: the same weights as in memory, killed in the middle or not."""

import asyncio
import contextlib
import uuid

from broker.bus import Bus
from broker.jetstream import connect
from broker.messages import Event, StepCommitted, StepPlanned, WeightsPublished
from broker.settings import NatsSettings
from broker.topology import Log
from tests.learner_lives import Run, a_server, ended, of_kind, outcome, started, windows, written


async def ledger(bus: Bus, enough) -> list[Event]:
    """LEDGER, once it holds what a test waits for."""
    cursor = await bus.cursor(Log.LEDGER, 0)
    found: list[Event] = []
    async with asyncio.timeout(60):
        while not enough(found):
            found += [stored.event() for stored in await cursor.read(100, 0.5)]
    await cursor.close()
    return found


async def test_a_cancelled_life_on_jetstream_is_completed_to_the_same_digests(nats_url, tmp_path):
    expected = await Run(tmp_path / "memory", await a_server(windows())).to_the_end()
    name = f"r{uuid.uuid4().hex[:8]}"
    bus = await connect(NatsSettings(url=nats_url), name)
    try:
        await bus.ensure_logs(NatsSettings(url=nats_url))
        await bus.publish(started())
        for batch in windows():
            await bus.publish_batch(batch)
        run = Run(tmp_path / "nats", await a_server([]))
        first = asyncio.create_task(run.live(bus))
        await ledger(bus, lambda found: len(of_kind(found, StepPlanned)) == 2)
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first

        second = asyncio.create_task(Run(tmp_path / "nats", await a_server([])).live(bus))
        await ledger(bus, lambda found: len(of_kind(found, StepCommitted)) == 4)
        await bus.publish(ended())
        await second

        found = await ledger(bus, lambda found: "checkpoint 4" in written(found))
        assert outcome(found) == outcome(expected)
        assert written(found) == written(expected)
        names = {
            uri.removeprefix("object:") for uri in (w.uri for w in of_kind(found, WeightsPublished))
        }
        assert set(await bus.list_objects("weights/")) == names
    finally:
        await bus.delete_run()
        await bus.close()
