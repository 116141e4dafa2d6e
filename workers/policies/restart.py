"""How the policy takes up a run where it was left: records in ANNOTATED, and the newest snapshot."""

import hashlib

import structlog
from pydantic import ValidationError

from broker.bus import Bus, Stored
from broker.errors import SluiceError
from broker.telemetry import Health
from broker.topology import (
    H_CUT,
    H_GROUP,
    H_OUTCOME,
    H_REASON,
    H_REQUEST_SEQ,
    H_VERIFIED_SEQ,
    H_WINDOW,
    Log,
)
from workers.policies.decisions import Record, Recorded, Snapshot
from workers.policies.ledger import LedgerView, read_to

OBJECT_WAIT_S = 30.0
PREFIX = "snapshots/policy-"

log = structlog.get_logger()


def snapshot_name(digest: str) -> str:
    return PREFIX + digest


def snapshot_digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def read_annotated(bus: Bus, health: Health) -> tuple[list[Stored], int]:
    """Headers of all that ANNOTATED holds, and its last sequence: what the next decision must follow."""
    cursor = await bus.cursor(Log.ANNOTATED, 0, headers_only=True)
    found: list[Stored] = []
    try:
        while True:
            state = await bus.state(Log.ANNOTATED)
            if state.messages == 0 or cursor.position >= state.last:
                return found, state.last
            found += await read_to(cursor, state.last, "the end of ANNOTATED", health)
    finally:
        await cursor.close()


def recorded(annotated: list[Stored], view: LedgerView) -> Recorded:
    """What is decided already, from the headers of ANNOTATED and from LEDGER."""
    groups: dict[str, Record] = {}
    cuts: dict[int, int] = {}
    for stored in annotated:
        found = stored.headers
        try:
            record = Record(
                request_seq=int(found[H_REQUEST_SEQ]),
                verified_seq=int(found[H_VERIFIED_SEQ]),
                outcome=found[H_OUTCOME],
                reason=found[H_REASON],
            )
            group_id = found[H_GROUP]
            cut = (int(found[H_WINDOW]), int(found[H_CUT])) if H_WINDOW in found else None
        except (KeyError, ValueError) as error:
            # No policy of this program wrote it: it decides nothing.
            log.warning("decision ignored", sequence=stored.sequence, reason=repr(error))
            continue
        groups[group_id] = record
        if cut is not None:
            cuts[cut[0]] = cut[1]
    if view.mixture is not None and view.mixture.update_no:
        # The update is published just before its window: it fixes the cut, whatever came between.
        cuts.setdefault(view.mixture.window, view.mixture.cut)
    ends = view.ended_before.last_sequences if view.ended_before else {}
    return Recorded(
        groups=groups,
        cuts=cuts,
        # Requests are numbered as their log is: the dispatcher alone writes it, one each.
        ended_requests=ends.get(Log.REQUESTS, 0),
        ended_verified=ends.get(Log.VERIFIED, 0),
        floor=view.floor,
    )


async def load_snapshot(bus: Bus, view: LedgerView) -> Snapshot | None:
    """The newest snapshot that LEDGER names; None before the first."""
    advanced, _ = view.advanced.get(Log.VERIFIED, (None, 0))
    if advanced is None or advanced.snapshot_digest is None:
        return None
    digest = advanced.snapshot_digest
    name = snapshot_name(digest)
    data = await bus.get_object(name, wait_s=OBJECT_WAIT_S)
    if data is None or snapshot_digest(data) != digest:
        state = "missing" if data is None else f"not what its name says ({snapshot_digest(data)})"
        raise SluiceError(
            f"object {name} is {state}; the policy cannot go on from VERIFIED {advanced.sequence}"
        )
    try:
        return Snapshot.model_validate_json(data)
    except ValidationError as error:
        raise SluiceError(f"object {name} is not a snapshot of this version: {error}") from error


async def delete_other_snapshots(bus: Bus, keep: str) -> None:
    """Snapshots that LEDGER does not name any more are garbage."""
    for name in await bus.list_objects(PREFIX):
        if name != snapshot_name(keep):
            await bus.delete_object(name)
