"""Reads ANNOTATED by cursor and gathers windows. A window is one atomic batch, so it is never half there."""

import structlog

from broker.bus import Bus, Cursor, Stored
from broker.errors import Poison, SluiceError
from broker.messages import GroupAnnotated
from broker.topology import H_OUTCOME, H_WINDOW, Log, group_from_headers, kind_subjects
from learner.windows import Member, Window

log = structlog.get_logger()

READ_LIMIT = 64
POLL_S = 1.0


class WindowGap(SluiceError):
    """ANNOTATED holds a window that cannot be the next one: the log was purged or written by a stranger."""


def member_of(stored: Stored) -> Member:
    """An admitted group from its message; without its body when that cannot be read."""
    key = group_from_headers(stored.headers)
    group = None
    try:
        event = stored.event()
        if isinstance(event, GroupAnnotated) and event.group == key:
            group = event
    except Poison as error:
        log.error("annotated group cannot be read", group_id=key.group_id, error=str(error))
    return Member(key.group_id, key.bundle, key.domain, stored.sequence, group)


class WindowBuffer:
    """Puts the members of the open window together."""

    def __init__(self, next_window: int) -> None:
        self.next_window = next_window
        self._members: list[Member] = []

    def add(self, stored: Stored) -> Window | None:
        """The window, once this message completes it. Drops and failures pass by; so do older windows."""
        if stored.headers.get(H_OUTCOME) != "admitted":
            return None
        number = int(stored.headers[H_WINDOW])
        if number < self.next_window:
            return None
        if number > self.next_window:
            raise WindowGap(
                f"ANNOTATED {stored.sequence}: window {number}; expected {self.next_window}"
            )
        self._members.append(member_of(stored))
        sizes = [m.group.window_size for m in self._members if m.group is not None]
        return self._close() if sizes and len(self._members) == sizes[0] else None

    def log_is_read(self) -> Window | None:
        """Nothing follows for now: a window of which no member can be read is all there, its size unknown."""
        if self._members and all(member.group is None for member in self._members):
            return self._close()
        return None

    def _close(self) -> Window:
        members = tuple(sorted(self._members, key=lambda member: member.stream_seq))
        window = Window(self.next_window, members, members[-1].stream_seq)
        self._members = []
        self.next_window += 1
        return window


class WindowReader:
    """Windows in order, from a position in ANNOTATED."""

    def __init__(self, bus: Bus, *, after: int, next_window: int) -> None:
        self._bus = bus
        self._after = after
        self._buffer = WindowBuffer(next_window)
        self._cursor: Cursor | None = None
        self._read: list[Stored] = []

    async def next(self) -> Window:
        """Waits for the next complete window; the caller limits the wait and may cancel it."""
        if self._cursor is None:
            subjects = (kind_subjects(self._bus.run, GroupAnnotated.KIND, "train"),)
            self._cursor = await self._bus.cursor(Log.ANNOTATED, self._after, subjects)
        while True:
            while self._read:
                window = self._buffer.add(self._read.pop(0))
                if window is not None:
                    return window
            self._read = await self._cursor.read(READ_LIMIT, POLL_S)
            if not self._read and (window := self._buffer.log_is_read()):
                return window

    async def close(self) -> None:
        if self._cursor is not None:
            await self._cursor.close()
