"""Which published model weights may be deleted: not the newest ones, not what an evaluation still needs."""

import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping

from broker.bus import Bus, Cursor, Stored
from broker.errors import TooLong
from broker.messages import EvaluationFinished, GroupRequested, WeightsPublished
from broker.topology import H_DOMAIN, H_GROUP, Log, kind_subjects

READ_LIMIT = 256
READ_WAIT_S = 1.0
END_LIMIT_S = 120.0


def deletable(versions: Iterable[int], *, pinned: Collection[int], newest: int) -> list[int]:
    """Versions beyond the `newest` most recent that nothing pins, oldest first."""
    ordered = sorted(versions)
    return [
        version for version in ordered[: max(0, len(ordered) - newest)] if version not in pinned
    ]


def orphans(
    stored: Mapping[str, tuple[int, str]],
    published: Mapping[int, WeightsPublished],
    *,
    pinned: Collection[int],
) -> list[str]:
    """Uris of weights that nobody can ask for.

    stored: uri -> version and digest. Those with another digest than was published belong to a life
    that died before its commit; those of older versions than LEDGER still names were outlived. Above
    the newest published version a publication may be under way.
    """
    newest = max(published, default=-1)
    found = []
    for uri, (version, digest) in stored.items():
        known = published.get(version)
        wrong = known is not None and known.digest != digest
        if version <= newest and (wrong or (known is None and version not in pinned)):
            found.append(uri)
    return found


def kept_versions(pace_steps: int) -> int:
    """How many of the newest versions stay.

    The dispatcher asks for an evaluation of a version when it sees its commit; until it does, the
    learner can be at most `pace_steps` + 1 steps ahead of it, since its own requests run out.
    """
    return pace_steps + 3


def evaluated_version(group_id: str) -> int:
    """Version in an evaluation group's id, `v000012-math-00003-0`."""
    return int(group_id.split("-", 1)[0].removeprefix("v"))


class Pins:
    """Versions that an unfinished evaluation names, followed by cursor."""

    def __init__(self, bus: Bus) -> None:
        self._asked: set[tuple[int, str]] = set()
        self._finished: set[tuple[int, str]] = set()
        requests = kind_subjects(bus.run, GroupRequested.KIND, "eval")
        self._requests = _Tail(bus, Log.REQUESTS, requests, headers_only=True)
        finished = kind_subjects(bus.run, EvaluationFinished.KIND)
        self._ledger = _Tail(bus, Log.LEDGER, finished, headers_only=False)

    async def read(self) -> set[int]:
        """Read on to the ends of the logs; the versions pinned now."""
        # Requests first: an evaluation that finishes in between is seen as finished.
        async for stored in self._requests.to_end():
            version = evaluated_version(stored.headers[H_GROUP])
            # A benchmark is named after the domain of its source.
            self._asked.add((version, stored.headers[H_DOMAIN]))
        async for stored in self._ledger.to_end():
            event = stored.event()
            if isinstance(event, EvaluationFinished):
                self._finished.add((event.version, event.benchmark))
        return {version for version, _ in self._asked - self._finished}

    async def close(self) -> None:
        await self._requests.close()
        await self._ledger.close()


class _Tail:
    """The messages of one subject, up to the newest that the leader holds."""

    def __init__(self, bus: Bus, log: Log, subject: str, *, headers_only: bool) -> None:
        self._bus, self._log, self._subject = bus, log, subject
        self._headers_only = headers_only
        self._cursor: Cursor | None = None

    async def to_end(self) -> AsyncIterator[Stored]:
        """What came since the last time; TooLong when it does not come."""
        if self._cursor is None:
            self._cursor = await self._bus.cursor(
                self._log, 0, (self._subject,), headers_only=self._headers_only
            )
        deadline = time.monotonic() + END_LIMIT_S
        # Asked again after each read: what is purged meanwhile never comes.
        while (end := await self._bus.last(self._log, self._subject)) is not None:
            if self._cursor.position >= end.sequence:
                break
            if time.monotonic() > deadline:
                raise TooLong(
                    f"{self._subject}: read to {self._cursor.position} of {end.sequence} "
                    f"within {END_LIMIT_S:.0f} s"
                )
            for stored in await self._cursor.read(READ_LIMIT, READ_WAIT_S):
                yield stored

    async def close(self) -> None:
        if self._cursor is not None:
            await self._cursor.close()
