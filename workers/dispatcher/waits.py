"""The one thing a loop is waiting for, named in the process's status for as long as it lasts."""

from contextlib import ExitStack
from types import TracebackType

from broker.telemetry import Health


class CurrentWait:
    """Keeps `health.waiting_for` open across turns of a loop while the name stays the same."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._open = ExitStack()
        self.what: str | None = None

    def name(self, what: str, limit_s: float | None) -> None:
        if what == self.what:
            return
        self._open.close()
        self._open.enter_context(self._health.waiting_for(what, limit_s))
        self.what = what

    def __enter__(self) -> "CurrentWait":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.close()
