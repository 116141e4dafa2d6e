"""Every table of the audit store, as migrations/ makes them; `ops/bin/check` compares the two.

A column is documented where its meaning is not its name. Keys are natural; `event_id` and `*_seq` are
sequences of the run's logs, so that a redelivered event finds its own row.
"""

from store import models_groups, models_ledger, models_run
from store.columns import metadata

__all__ = ["TABLES", "metadata", "models_groups", "models_ledger", "models_run"]

TABLES = {table.name: table for table in metadata.tables.values()}
