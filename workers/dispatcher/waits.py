"""What a loop is waiting for, named in the process's status for as long as it lasts, and how long it may."""

from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType

from broker.telemetry import Health

FULL_LIMIT_S = 24 * 3600.0
"""With a full log: only a reader that comes back, or a person, can make room."""


@dataclass
class Stillness:
    """For how long nothing has moved, and how long that may be; the clock is the caller's."""

    now: float
    moves: int
    moved_at: float
    full_at: float
    """A log was full, or something moved."""

    @classmethod
    def since(cls, now: float, moves: int) -> "Stillness":
        return cls(now, moves, now, now)

    def look(self, now: float, moves: int, *, full: bool) -> None:
        self.now = now
        if moves != self.moves:
            self.moves, self.moved_at = moves, now
        if full:
            self.full_at = now
        self.full_at = max(self.full_at, self.moved_at)

    @property
    def idle_s(self) -> float:
        return self.now - self.moved_at

    def limit_s(self, usual_s: float) -> float:
        """Of idle_s: the usual one counts from when there was space."""
        return min(usual_s + self.full_at - self.moved_at, max(usual_s, FULL_LIMIT_S))


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
