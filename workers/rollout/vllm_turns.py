"""An engine's turns on a GPU that it shares with the learner: awake while it is used, then asleep.

The turn is given back only when the engine holds no memory there any more: it sleeps, or it has ended.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from broker.gpu_turn import LIMIT_S, GpuTurn
from workers.rollout.engine import EngineError

LINGER_S = 0.5
"""Between two groups there may be a moment without one; falling asleep and waking take longer."""
POLL_S = 0.05


class Turns:
    def __init__(
        self, turn: GpuTurn, sleep: Callable[[], Awaitable[None]], *, limit_s: float = LIMIT_S
    ) -> None:
        """sleep: returns when the engine is asleep or has ended."""
        self._turn = turn
        self._sleep = sleep
        self._limit_s = limit_s
        self._users = 0
        self._held = False
        self._changing = asyncio.Lock()
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def descriptor(self) -> int:
        return self._turn.descriptor

    @asynccontextmanager
    async def use(self) -> AsyncIterator[None]:
        """The turn is ours inside. Raises EngineError when it is not to be had within the limit."""
        self._users += 1
        try:
            async with self._changing:
                if not self._held:
                    await self._take()
            yield
        finally:
            self._users -= 1
            if self._users == 0 and not self._closed:
                leaving = asyncio.create_task(self._leave())
                self._leaving.add(leaving)
                leaving.add_done_callback(self._leaving.discard)

    async def _take(self) -> None:
        try:
            async with asyncio.timeout(self._limit_s):
                # The kernel tells nobody that a lock is free again.
                while not self._closed and not self._turn.take():  # noqa: ASYNC110
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise EngineError(f"the learner kept the GPU for {self._limit_s:g} s") from None
        if self._closed:
            raise EngineError("the engine was closed")
        self._held = True

    async def _leave(self) -> None:
        await asyncio.sleep(LINGER_S)
        async with self._changing:
            if self._users == 0 and self._held:
                await self._sleep()
                self._turn.give()
                self._held = False

    async def close(self) -> None:
        """Once the engine has ended."""
        if self._closed:
            return
        self._closed = True
        leaving = list(self._leaving)
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        self._turn.close()
