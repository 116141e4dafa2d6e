"""Which published model weights may be deleted: not the newest ones, not what an evaluation still needs."""

from collections.abc import Collection, Iterable, Mapping

from broker.bus import Bus, Cursor
from broker.messages import EvaluationFinished, GroupRequested, WeightsPublished
from broker.topology import H_DOMAIN, H_GROUP, Log, kind_subjects

READ_LIMIT = 256
POLL_S = 0.05


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
        self._bus = bus
        self._asked: set[tuple[int, str]] = set()
        self._finished: set[tuple[int, str]] = set()
        self._requests: Cursor | None = None
        self._ledger: Cursor | None = None

    async def read(self) -> set[int]:
        """Read on to the ends of the logs; the versions pinned now."""
        if self._requests is None or self._ledger is None:
            run = self._bus.run
            requests = kind_subjects(run, GroupRequested.KIND, "eval")
            finished = kind_subjects(run, EvaluationFinished.KIND)
            self._requests = await self._bus.cursor(Log.REQUESTS, 0, (requests,), headers_only=True)
            self._ledger = await self._bus.cursor(Log.LEDGER, 0, (finished,))
        # Requests first: an evaluation that finishes in between is seen as finished.
        while read := await self._requests.read(READ_LIMIT, POLL_S):
            for stored in read:
                version = evaluated_version(stored.headers[H_GROUP])
                # A benchmark is named after the domain of its source.
                self._asked.add((version, stored.headers[H_DOMAIN]))
        while read := await self._ledger.read(READ_LIMIT, POLL_S):
            for stored in read:
                event = stored.event()
                if isinstance(event, EvaluationFinished):
                    self._finished.add((event.version, event.benchmark))
        return {version for version, _ in self._asked - self._finished}

    async def close(self) -> None:
        for cursor in (self._requests, self._ledger):
            if cursor is not None:
                await cursor.close()
