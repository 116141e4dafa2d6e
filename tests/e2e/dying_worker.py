"""A worker that kills itself with SIGKILL right before or after it publishes the nth event of a kind.

dying_worker.py WHEN:KIND:N ROLE CONFIG, for example `after:step_planned:2 learner config.toml`.
The rest is the worker as it is: only the connection that it is given knows when to die.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from broker.jetbus import JetStreamBus
from broker.messages import Event
from broker.settings import NatsSettings
from broker.telemetry import Health
from ops import settings, worker
from ops.paths import RunPaths, default_runs
from ops.processes import die_with


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class MortalBus:
    """A bus that ends its process around one publication."""

    def __init__(self, bus: JetStreamBus, when: str, kind: str, number: int) -> None:
        self._bus = bus
        self._when = when
        self._kind = kind
        self._left = number

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    async def publish(self, event: Event, **expected: Any) -> int:
        due = self._is_due([event])
        if due and self._when == "before":
            die()
        sequence = await self._bus.publish(event, **expected)
        if due:
            die()
        return sequence

    async def publish_batch(self, events: Sequence[Event], **expected: Any) -> int:
        due = self._is_due(events)
        if due and self._when == "before":
            die()
        sequence = await self._bus.publish_batch(events, **expected)
        if due:
            die()
        return sequence

    def _is_due(self, events: Sequence[Event]) -> bool:
        before = self._left
        self._left -= [event.KIND for event in events].count(self._kind)
        return before > 0 >= self._left


def main(point: str, role: str, config: Path) -> int:
    when, kind, number = point.split(":")
    die_with(int(os.environ["SLUICE_PARENT"]))

    async def connect(nats: NatsSettings, run: str, health: Health) -> Any:
        return MortalBus(await worker.connect_to_nats(nats, run, health), when, kind, int(number))

    configuration = settings.load(config)
    paths = RunPaths(default_runs() / configuration.run.id)
    return worker.main(configuration, (role,), paths, resume=False, connect=connect)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
