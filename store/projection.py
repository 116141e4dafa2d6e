"""The recorder's hold on Postgres: work is retried until Postgres is back, and the wait is seen."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import structlog

from broker.errors import Unreachable
from broker.telemetry import Health
from store import schema
from store.database import LOST, Connection, connect, without_password

TURN_S = 0.0005
"""How long a thread of Python goes on while another waits for its turn."""

T = TypeVar("T")

log = structlog.get_logger()

PAUSE_S = (0.2, 5.0)
"""Between two attempts to connect: at first, and at most."""
FINISH_S = 8.0
"""How long a cancelled recorder waits for the statement in progress."""


class Stopped(Exception):
    """The recorder was told to stop while Postgres was away; what was not committed is read again."""


class Projection:
    """One connection, used by one call at a time, in a thread so that the loop stays alive."""

    def __init__(self, url: str, *, health: Health, stop: asyncio.Event) -> None:
        self._url = url
        self._health = health
        self._stop = stop
        self._connection: Connection | None = None

    async def open(self, wait_s: float) -> None:
        """Unreachable or TooLong when Postgres or the wanted revision is not there within `wait_s`."""
        shown = without_password(self._url)
        with self._health.waiting_for(f"Postgres at {shown}", wait_s):
            self._connection = await in_thread(
                lambda: connect(self._url, wait_s=wait_s, application="sluice recorder")
            )
        with self._health.waiting_for(f"the wanted revision of {shown}", wait_s):
            await in_thread(lambda: schema.wait(self._url, limit_s=wait_s))

    async def do(self, work: Callable[[Connection], T]) -> T:
        """`work`, which is idempotent, on the connection; done again whenever Postgres was lost."""
        while True:
            try:
                connection = self._connection or await self._reconnect()
                return await in_thread(partial(work, connection))
            except LOST as error:
                log.warning("postgres lost", reason=" ".join(str(error).split()))
                self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _reconnect(self) -> Connection:
        pause_s, most_s = PAUSE_S
        with self._health.waiting_for(f"Postgres at {without_password(self._url)}", None):
            while not self._stop.is_set():
                try:
                    await asyncio.wait_for(self._stop.wait(), pause_s)
                except TimeoutError:
                    pause_s = min(2 * pause_s, most_s)
                    try:
                        self._connection = await in_thread(
                            lambda: connect(self._url, application="sluice recorder")
                        )
                        return self._connection
                    except Unreachable as error:
                        log.warning("postgres is away", reason=str(error))
        raise Stopped


async def in_thread(work: Callable[[], T]) -> T:
    """In a thread; a cancellation waits for it, so that nobody closes a connection in use."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=FINISH_S)
        raise


@contextmanager
def short_turns() -> Iterator[None]:
    """Decoding must not keep Postgres waiting: at each of its answers the writer needs a turn, 5 ms away."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(TURN_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
