"""The newest request that can be read: what cannot was not written by a dispatcher of this program."""

import structlog

from broker.bus import Bus
from broker.errors import Poison
from broker.messages import GroupRequested
from broker.topology import Log, kind_subjects

SEARCH_LIMIT = 1000
"""Messages looked at; a run whose newest requests cannot be read is no run to go on with."""

log = structlog.get_logger()


async def newest_train_request(bus: Bus, domain: str | None = None) -> GroupRequested | None:
    """Of one domain, if given; None when there is none among the newest messages."""
    subject = kind_subjects(bus.run, GroupRequested.KIND, "train").removesuffix(">")
    subject += f"{domain}." if domain else ""
    stored = await bus.last(Log.REQUESTS, f"{subject}>")
    if stored is None:
        return None
    first = max((await bus.state(Log.REQUESTS)).first, stored.sequence - SEARCH_LIMIT + 1)
    for sequence in range(stored.sequence, first - 1, -1):
        found = await bus.get(Log.REQUESTS, sequence)
        if found is None or not found.subject.startswith(subject):
            continue
        try:
            event = found.event()
        except Poison as error:
            log.warning("request ignored", sequence=sequence, reason=str(error))
            continue
        if isinstance(event, GroupRequested):
            return event
    return None


async def lacking_of_cohort(bus: Bus, newest: GroupRequested) -> int:
    """Groups of the newest request's cohort that were not asked for: a full server kept only the first."""
    state, kept = await bus.state(Log.REQUESTS), 0
    for sequence in range(state.last, state.first - 1, -1):
        event = await _train_request(bus, sequence)
        if event is None or event.cohort is None:
            continue  # an evaluation, or a stranger's
        if event.cohort != newest.cohort:
            break
        kept += 1
    else:
        if state.first > 1:
            return 0  # partly purged, so it ended; what has begun only does not
    return max(0, (newest.cohort_size or 1) - kept)


async def _train_request(bus: Bus, sequence: int) -> GroupRequested | None:
    stored = await bus.get(Log.REQUESTS, sequence)
    try:
        event = stored.event() if stored is not None else None
    except Poison:
        return None
    return event if isinstance(event, GroupRequested) else None
