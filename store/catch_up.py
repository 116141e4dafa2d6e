"""Recording what was added to the LEDGER of a run after its recorder had gone."""

import asyncio

from broker.bus import Bus
from broker.telemetry import Health
from broker.topology import Log
from store.projection import Projection
from store.rebuild import read_log
from store.recording import Recording
from store.settings import StoreSettings


async def ledger(bus: Bus, url: str, *, settings: StoreSettings, health: Health) -> int:
    """Write what LEDGER holds beyond the store's position; how many messages that were."""
    projection = Projection(url, health=health, stop=asyncio.Event())
    try:
        await projection.open(settings.connect_wait_s)
        record = Recording(bus, projection, bus.dead_letter)
        await record.load()
        return await read_log(bus, Log.LEDGER, record, settings.batch_rows)
    finally:
        projection.close()
