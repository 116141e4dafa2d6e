"""The audit store's tables, guards and views."""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql"

VIEWS = (
    "unlearnable", "drop_bias", "staleness_histogram", "mixture_audit", "policy_decisions",
    "sample_history", "supervision_fold", "current_verdict",
)  # fmt: skip
TABLES = (
    "incident", "evaluation_item", "evaluation", "checkpoint", "weights", "mixture", "batch_member",
    "learner_step", "supervision_state", "supervision_event", "annotation", "group_decision", "verdict",
    "generation", "group_count", "prompt_group", "rendered_prompt", "sample", "dataset",
    "recorder_cursor", "run_end", "run",
)  # fmt: skip


def upgrade() -> None:
    for name in ("tables", "ledger_tables", "views", "guards"):
        _execute((SQL / f"0001_{name}.sql").read_text(encoding="utf-8"))


def downgrade() -> None:
    for view in VIEWS:
        _execute(f"DROP VIEW {view}")
    for table in TABLES:
        _execute(f"DROP TABLE {table}")
    for function in ("count_groups", "refuse_backward", "refuse_change"):
        _execute(f"DROP FUNCTION {function}()")
    for kind in ("step_status", "group_state"):
        _execute(f"DROP TYPE {kind}")


def _execute(statements: str) -> None:
    """Several statements as written: SQLAlchemy would look for parameters in them."""
    connection = op.get_bind().connection.driver_connection
    assert connection is not None  # bound above
    connection.execute(statements)
