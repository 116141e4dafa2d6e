"""What was purged before it was recorded is on record."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE recorder_gap (
            run_id text NOT NULL,
            log text NOT NULL,
            first_seq bigint NOT NULL,
            last_seq bigint NOT NULL,
            floor bigint NOT NULL,
            noticed_at timestamptz NOT NULL,
            PRIMARY KEY (run_id, log, first_seq)
        )
        """
    )


def downgrade() -> None:
    op.execute("DROP TABLE recorder_gap")
