"""How many answers an engine works on at once: whole groups, first come first served, fewer when its
key-value cache fills up.

The limit is raised by addition and lowered by multiplication, as prime-rl does: an engine whose cache is
full throws answers out and computes them again, which costs more than waiting.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

FULL, ROOMY = 0.9, 0.7
"""Shares of the cache in use: above the first the limit falls, below the second it may grow."""
LOWER_BY = 0.75
RAISE_BY = 8
"""Answers; once a change of the limit has shown its effect, which takes SETTLE_S."""
SETTLE_S = 1.0


class RowLimit:
    """The limit and its rule; knows no clock and no engine."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.now = most
        self._changed_at_s = float("-inf")

    def observe(self, *, cache_use: float, preempted: int, rows: int, at_s: float) -> None:
        """cache_use: share of the cache's blocks in use, 0..1. preempted: answers thrown out in one step."""
        if at_s - self._changed_at_s < SETTLE_S:
            return
        if preempted > 0 or cache_use > FULL:
            limit = max(1, int(min(self.now, max(rows, 1)) * LOWER_BY))
        elif cache_use < ROOMY and rows >= self.now - RAISE_BY:
            limit = min(self.most, self.now + RAISE_BY)
        else:
            return
        if limit != self.now:
            self.now, self._changed_at_s = limit, at_s


class Room:
    """Lets groups in while their answers fit the limit; one larger than the limit goes in alone."""

    def __init__(self, limit: RowLimit) -> None:
        self.limit = limit
        self.rows = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    @asynccontextmanager
    async def of(self, size: int) -> AsyncIterator[Callable[[], None]]:
        """Places for `size` answers; the function given frees one, the end of the block all that are left."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, size))
        self.admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self.admit()
            else:
                self._leave(size)
            raise
        held = size

        def leave() -> None:
            nonlocal held
            held -= 1
            self._leave(1)

        try:
            yield leave
        finally:
            self._leave(held)

    def _leave(self, size: int) -> None:
        self.rows -= size
        self.admit()

    def admit(self) -> None:
        """Whoever fits now; to be called when the limit has changed."""
        while self._waiting:
            turn, size = self._waiting[0]
            if not turn.cancelled():
                if self.rows > 0 and self.rows + size > self.limit.now:
                    return
                self.rows += size
                turn.set_result(None)
            self._waiting.popleft()
