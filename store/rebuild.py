"""`sluice db rebuild`: a run's rows anew, from what its logs still hold, and what is missing of them.

Reads the logs and writes nothing to them: it is no reader that anybody waits for.
"""

import asyncio
from dataclasses import dataclass

from broker.bus import Bus, Stored
from broker.errors import BadConfiguration, TooLong
from broker.telemetry import Health
from broker.topology import Log
from store.database import Connection, transaction
from store.intake import LOGS, Batch
from store.merge import KEYS
from store.missing import Missing, missing
from store.projection import Projection
from store.recording import Recording
from store.settings import StoreSettings

READ_WAIT_S = 5.0
READ_LIMIT_S = 60.0
"""Without a message that is known to be there."""
CHUNK_MESSAGES = 200
MISSING_LIMIT_S = 900.0
IN_ORDER = (Log.LEDGER, *(log for log in LOGS if log is not Log.LEDGER))
"""LEDGER first: it says which output came too late to count."""
OF_A_RUN = (*sorted(name for name, keys in KEYS.items() if "run_id" in keys), "recorder_cursor")


@dataclass(frozen=True)
class Rebuilt:
    """What was made of one run's logs."""

    run_id: str
    messages: int
    undecodable: int
    missing: Missing


async def rebuild(bus: Bus, url: str, *, settings: StoreSettings, health: Health) -> Rebuilt:
    """Write all rows of the run of `bus`, from its logs as they are now.

    BadConfiguration when the store already holds something of it; TooLong when a log cannot be read.
    """
    projection = Projection(url, health=health, stop=asyncio.Event())
    try:
        await projection.open(settings.connect_wait_s)
        await projection.do(lambda c: _refuse_known(c, bus.run))
        record = Recording(bus, projection, _leave)
        await record.load()
        messages = 0
        for log in IN_ORDER:
            messages += await read_log(bus, log, record, settings.batch_rows)
        await record.close_what_ended()
        lacking = await projection.do(lambda c: _missing(c, bus.run))
    finally:
        projection.close()
    undecodable = sum(position.dead_lettered for position in record.positions.values())
    return Rebuilt(bus.run, messages, undecodable, lacking)


async def _leave(stored: Stored, reason: str) -> None:
    """The message stays where it is: a rebuild writes to no log."""


async def read_log(bus: Bus, log: Log, record: Recording, rows: int) -> int:
    """One log to where it ends now; how many messages."""
    state = await bus.state(log)
    if not state.messages:
        return 0
    cursor = await bus.cursor(log, record.position(log).sequence)
    read, waited_s = 0, 0.0
    try:
        while cursor.position < state.last:
            batch = Batch(bus.run, record.sequences(), record.endings)
            while not batch.full(rows) and cursor.position < state.last:
                found = await cursor.read(CHUNK_MESSAGES, READ_WAIT_S)
                waited_s = 0.0 if found else waited_s + READ_WAIT_S
                if waited_s >= READ_LIMIT_S:
                    raise TooLong(
                        f"{log}: read to {cursor.position} of {state.last}, then nothing for "
                        f"{READ_LIMIT_S:g} s"
                    )
                for stored in found:
                    batch.add(stored)
                read += len(found)
            await record.store(batch)
    finally:
        await cursor.close()
    return read


def _refuse_known(connection: Connection, run_id: str) -> None:
    with transaction(connection):
        for table in OF_A_RUN:
            query = f"SELECT EXISTS (SELECT FROM {table} WHERE run_id = %s)"
            found = connection.execute(query.encode(), [run_id]).fetchone()
            if found is not None and found[0]:
                raise BadConfiguration(
                    f"run {run_id}: the store already holds rows of it in {table}; "
                    "db rebuild fills a database that holds none: name an empty one"
                )


def _missing(connection: Connection, run_id: str) -> Missing:
    with transaction(connection, limit_s=MISSING_LIMIT_S):
        return missing(connection, run_id)
