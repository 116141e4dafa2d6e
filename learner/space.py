"""When the logs fill up: the newest checkpoint pins what lies above it, so an early one makes room."""

import time

from broker.bus import Bus
from broker.topology import Log

TIGHT_FRACTION = 0.7
"""Of a log's limit."""
LOGS = tuple(log for log in Log if log is not Log.DEAD)
LOOK_S = 1.0
REST_S = 10.0
REST_SHARE = 10
"""After an early checkpoint that took t seconds there is none for this times t: a log that stays full
for another reader's sake must not turn the learner into a writer of checkpoints."""


class EarlyCheckpoint:
    """Whether a checkpoint is due before its time."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._look_at = 0.0

    async def fullest(self) -> str:
        """`ANNOTATED is 71 % full` for a log that calls for a checkpoint now; empty when none does."""
        now = time.monotonic()
        if now < self._look_at:
            return ""
        self._look_at = now + LOOK_S
        states = [(log, await self._bus.state(log)) for log in LOGS]
        share, log = max((state.bytes / state.limit_bytes, log) for log, state in states)
        return f"{log} is {share:.0%} full" if share > TIGHT_FRACTION else ""

    def taken(self, seconds: float) -> None:
        """One was written, in so many seconds."""
        self._look_at = time.monotonic() + max(REST_S, REST_SHARE * seconds)
