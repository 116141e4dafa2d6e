"""Events to rows, in pure functions: what a message says, as rows of the audit store, and nothing derived.

Rows with one key are merged by store.merge, so that it does not matter in which order the logs are read.
"""

from broker.errors import Poison
from broker.messages import (
    Event,
    GroupAnnotated,
    GroupGenerated,
    GroupRequested,
    GroupVerified,
    ShadowDecided,
)
from store import rows_groups, rows_ledger
from store.row import Row


def rows_of(run_id: str, sequence: int, event: Event) -> list[Row]:
    """The rows of one event; `sequence` is its place in its log. Poison when a value cannot be a row's."""
    try:
        match event:
            case GroupRequested():
                return rows_groups.requested(run_id, sequence, event)
            case GroupGenerated():
                return rows_groups.generated(run_id, sequence, event)
            case GroupVerified():
                return rows_groups.verified(run_id, sequence, event)
            case GroupAnnotated():
                return rows_groups.annotated(run_id, sequence, event)
            case ShadowDecided():
                return rows_groups.shadow(run_id, sequence, event)
            case _:
                return rows_ledger.rows_of(run_id, sequence, event)
    except (OverflowError, ValueError) as error:
        raise Poison(f"{event.KIND}: cannot be stored: {error}") from error
