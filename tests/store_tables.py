"""Writing events straight into a database, and reading its tables back for comparison."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from broker.bus import Stored
from broker.topology import Log
from store import closing, writer
from store.database import Connection
from store.merge import KEYS
from store.rows import rows_of
from store.writer import Position
from tests.store_world import World

LOGS = (Log.REQUESTS, Log.GENERATED, Log.VERIFIED, Log.ANNOTATED, Log.LEDGER)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
OF_A_RUN = (
    *sorted(name for name, keys in KEYS.items() if "run_id" in keys),
    "supervision_state",
)
"""Tables whose rows belong to one run."""


def write(connection: Connection, run_id: str, messages: Sequence[Stored]) -> None:
    """One batch, with the cursors at its messages."""
    rows = [row for stored in messages for row in rows_of(run_id, stored.sequence, stored.event())]
    moved: dict[str, Position] = {str(stored.log): Position(stored.sequence) for stored in messages}
    writer.write(connection, run_id, writer.encoded(rows), moved, now=NOW)


def write_run(connection: Connection, run_id: str, world: World) -> None:
    """A whole run in one batch, and its end."""
    write(connection, run_id, [stored for log in LOGS for stored in world.stored(log)])
    close_ends(connection, run_id)


def close_ends(connection: Connection, run_id: str) -> None:
    for end in closing.endings(connection, run_id):
        closing.close(connection, run_id, end)


def tables(
    connection: Connection, run_id: str, names: Iterable[str] = (*OF_A_RUN, "group_count")
) -> dict[str, list[dict[str, object]]]:
    """Rows of a run by table, in a fixed order, without the run's name and counts that are back at 0."""
    found = {}
    for name in names:
        query = f"SELECT to_jsonb(t) - 'run_id' FROM {name} AS t WHERE run_id = %s ORDER BY t"
        rows = [row for (row,) in connection.execute(query.encode(), [run_id])]
        found[name] = [row for row in rows if row.get("groups", 1) != 0 or name != "group_count"]
    connection.rollback()
    return found
