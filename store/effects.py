"""What follows in one table from rows of another, written in the same transaction and idempotent."""

from collections.abc import Sequence

from store.database import Connection
from store.merge import Tables, on_conflict
from store.models import TABLES
from store.row import End

STATE_COLUMNS = tuple(column.name for column in TABLES["supervision_state"].columns)


def apply_effects(connection: Connection, run_id: str, tables: Tables) -> None:
    samples = sorted({str(row["sample_key"]) for row in tables.get("supervision_event", ())})
    if samples:
        fold_supervision(connection, run_id, samples)
    steps = sorted({int(str(row["step"])) for row in tables.get("learner_step", ())})
    if steps:
        end_trained(connection, run_id, steps)


def fold_supervision(connection: Connection, run_id: str, samples: Sequence[str]) -> None:
    """supervision_state of these samples anew from all their events: right in any order of arrival."""
    names = ", ".join(STATE_COLUMNS)
    sets = ", ".join(f"{name} = EXCLUDED.{name}" for name in STATE_COLUMNS[2:])
    connection.execute(
        f"INSERT INTO supervision_state ({names}) SELECT {names} FROM supervision_fold "
        "WHERE run_id = %s AND sample_key = ANY(%s) ORDER BY sample_key "
        f"ON CONFLICT (run_id, sample_key) DO UPDATE SET {sets}".encode(),
        [run_id, list(samples)],
    )


def end_trained(connection: Connection, run_id: str, steps: Sequence[int]) -> None:
    """The groups of these steps end as trained, once the steps are committed as trained."""
    connection.execute(
        "INSERT INTO prompt_group AS t (run_id, group_id, state, trained_step, terminal_at, ends) "
        "SELECT m.run_id, m.group_id, 'trained', min(m.step), min(s.committed_at), %s "
        "FROM batch_member AS m JOIN learner_step AS s ON s.run_id = m.run_id AND s.step = m.step "
        "WHERE m.run_id = %s AND m.step = ANY(%s) AND s.status = 'trained' "
        f"GROUP BY m.run_id, m.group_id ORDER BY m.group_id {on_conflict('prompt_group')}".encode(),
        [End.TRAINED, run_id, list(steps)],
    )
