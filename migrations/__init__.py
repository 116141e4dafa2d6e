"""Alembic migrations of the audit store."""
