"""How migrations run: one at a time, whoever starts them, and never waiting for ever.

Called by store.schema, which passes the database in `config.attributes["url"]`; there is no alembic.ini.
"""

from alembic import context
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.pool import NullPool

from store.models import metadata
from store.schema import LOCK_KEY, LOCK_LIMIT_S, STATEMENT_LIMIT_S, ours


def run(connection: Connection) -> None:
    """Takes the lock, then lets Alembic look which revision is in force: a second look once it is held."""
    limits = {"lock": f"{LOCK_LIMIT_S}s", "statement": f"{STATEMENT_LIMIT_S}s"}
    connection.execute(text("SELECT set_config('lock_timeout', :lock, false)"), limits)
    connection.execute(text("SELECT set_config('statement_timeout', :statement, false)"), limits)
    connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": LOCK_KEY})
    connection.commit()
    try:
        context.configure(
            connection=connection,
            target_metadata=metadata,
            include_object=ours,
            compare_type=True,
            compare_server_default=True,
        )
        with context.begin_transaction():
            context.run_migrations()
    finally:
        connection.rollback()
        connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": LOCK_KEY})
        connection.commit()


engine = create_engine(context.config.attributes["url"], poolclass=NullPool)
with engine.connect() as opened:
    run(opened)
