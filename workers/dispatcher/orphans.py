"""Deletes what processes left in the object store when they died in the middle of a publication.

A large body is stored before the message that names it, and an object's parts before the entry that
makes them one. What stays unnamed for an hour, while nobody waits for space, belongs to the dead.
"""

import time

import structlog

from broker.bus import Bus
from broker.packing import objects_prefix
from broker.topology import H_OBJECT, Log

AGE_S = 3600.0
INTERVAL_S = 1800.0
READ_LIMIT, READ_WAIT_S = 1000, 5.0
LOGS = tuple(log for log in Log if log is not Log.DEAD)
"""DEAD names the objects of the other logs, for as long as those do."""

log = structlog.get_logger()


class Orphans:
    """Remembers since when an object is named by no message."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._suspected: dict[str, float] = {}
        self._next = 0.0

    async def sweep_now_and_then(self, *, tight: bool) -> None:
        """tight: publishers may wait for space, with their objects stored and their messages not."""
        now = time.monotonic()
        if tight:
            self._suspected.clear()
            self._next = now + INTERVAL_S
        elif now >= self._next:
            self._next = now + INTERVAL_S
            await self.sweep()

    async def sweep(self) -> int:
        """Delete what has been unnamed for AGE_S; how many objects."""
        now, unnamed = time.monotonic(), set[str]()
        for name in LOGS:
            unnamed |= await self._unnamed(name)
        self._suspected = {name: self._suspected.get(name, now) for name in unnamed}
        orphans = [name for name, since in self._suspected.items() if now - since >= AGE_S]
        for name in orphans:
            await self._bus.delete_object(name)
        parts = await self._bus.delete_unfinished_objects(AGE_S)
        if orphans or parts:
            log.info("deleted orphans", objects=len(orphans), unfinished=parts)
        return len(orphans) + parts

    async def _unnamed(self, name: Log) -> set[str]:
        """Objects of a log's bodies that none of its messages names. They are listed first."""
        unnamed = set(await self._bus.list_objects(objects_prefix(name)))
        state = await self._bus.state(name)
        if not unnamed or not state.messages:
            return unnamed
        cursor = await self._bus.cursor(name, 0, headers_only=True)
        try:
            while cursor.position < state.last:
                found = await cursor.read(READ_LIMIT, READ_WAIT_S)
                if not found:
                    return set()  # not read to its end: nothing is known
                unnamed.difference_update(stored.headers.get(H_OBJECT, "") for stored in found)
        finally:
            await cursor.close()
        return unnamed
