"""Purging a log on JetStream: messages up to a sequence, with the objects that hold their bodies."""

from collections.abc import Callable

from broker.bus import Bus, Stored
from broker.packing import objects_prefix
from broker.topology import (
    H_OBJECT,
    UNRETAINED_KINDS,
    Log,
    is_unretained,
    kind_subjects,
    stream_name,
)
from broker.wire import Wire, api

READ_WAIT_S = 5.0
READ_MESSAGES = 1000


async def purge(bus: Bus, wire: Wire, log: Log, up_to: int, *, keep_last_per_subject: bool) -> int:
    """How many messages were deleted.

    Objects go first: after a crash in between, the next purge meets the messages again.
    """
    if up_to <= 0:
        return 0
    stream = stream_name(bus.run, log)
    kept = await _newest(wire, stream, up_to) if keep_last_per_subject else {}

    def goes(stored: Stored) -> bool:
        if keep_last_per_subject and is_unretained(stored.subject):
            return stored.sequence <= up_to
        limit = kept.get(stored.subject, 0) if keep_last_per_subject else up_to + 1
        return stored.sequence < min(limit, up_to + 1)

    await _delete_objects(bus, log, up_to, goes)
    if not keep_last_per_subject:
        return (await api(wire, f"STREAM.PURGE.{stream}", {"seq": up_to + 1}))["purged"]
    purged = 0
    if log is Log.LEDGER:
        for kind in UNRETAINED_KINDS:
            question = {"filter": kind_subjects(bus.run, kind), "seq": up_to + 1}
            purged += (await api(wire, f"STREAM.PURGE.{stream}", question))["purged"]
    for subject, newest in kept.items():
        question = {"filter": subject, "seq": min(newest, up_to + 1)}
        purged += (await api(wire, f"STREAM.PURGE.{stream}", question))["purged"]
    return purged


async def _newest(wire: Wire, stream: str, up_to: int) -> dict[str, int]:
    """Per subject with more than one message that keeps its newest: the sequence of that."""
    counts: dict[str, int] = {}
    while True:
        question = {"subjects_filter": ">", "offset": len(counts)}
        page = await api(wire, f"STREAM.INFO.{stream}", question)
        subjects = page["state"].get("subjects") or {}
        counts |= subjects
        if not subjects or len(counts) >= page.get("total", 0):
            break
    found = {}
    for subject, count in counts.items():
        if count > 1 and not is_unretained(subject):
            newest = await api(wire, f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject})
            found[subject] = newest["message"]["seq"]
    return found


async def _delete_objects(bus: Bus, log: Log, up_to: int, goes: Callable[[Stored], bool]) -> None:
    """Bodies of the messages that go, found by their headers; nothing is read when there are none."""
    if not await bus.list_objects(objects_prefix(log)):
        return
    cursor = await bus.cursor(log, 0, headers_only=True)
    try:
        while True:
            messages = await cursor.read(READ_MESSAGES, READ_WAIT_S)
            for stored in messages:
                name = stored.headers.get(H_OBJECT)
                if name and goes(stored):
                    await bus.delete_object(name)
            if not messages or messages[-1].sequence >= up_to:
                return
    finally:
        await cursor.close()
