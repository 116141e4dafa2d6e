"""The audit store: a Postgres projection of the logs, and the questions one asks of it."""
