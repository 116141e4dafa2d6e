"""Short words for the columns of the audit store; times are timestamptz, digests bytea."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import ENUM, JSONB

metadata = MetaData()

GROUP_STATES = (
    "requested", "generated", "verified", "annotated", "measured", "failed", "dropped", "trained",
)  # fmt: skip
"""In the order of their rank: a group's state only moves forward."""
STEP_STATUSES = ("planned", "skipped", "trained")

group_state = ENUM(*GROUP_STATES, name="group_state", metadata=metadata)
step_status = ENUM(*STEP_STATUSES, name="step_status", metadata=metadata)


def txt(name: str, *, key: bool = False, null: bool = False) -> Column[str]:
    return Column(name, Text, primary_key=key, nullable=null)


def integer(name: str, *, key: bool = False, null: bool = False) -> Column[int]:
    return Column(name, Integer, primary_key=key, nullable=null, autoincrement=False)


def big(name: str, *, key: bool = False, null: bool = False) -> Column[int]:
    return Column(name, BigInteger, primary_key=key, nullable=null, autoincrement=False)


def real(name: str, *, null: bool = False) -> Column[float]:
    return Column(name, Double, nullable=null)


def flag(name: str, *, key: bool = False, null: bool = False) -> Column[bool]:
    return Column(name, Boolean, primary_key=key, nullable=null)


def when(name: str, *, null: bool = False) -> Column:
    return Column(name, DateTime(timezone=True), nullable=null)


def json(name: str, *, null: bool = False) -> Column:
    return Column(name, JSONB, nullable=null)


def raw(name: str, *, key: bool = False, null: bool = False) -> Column[bytes]:
    return Column(name, LargeBinary, primary_key=key, nullable=null)


def wide(name: str) -> Column:
    """An integer of up to 20 digits."""
    return Column(name, Numeric(20), nullable=True)


def cleaned() -> Column[bool]:
    """True when text of the row had characters that Postgres cannot hold; see store.clean."""
    return Column("cleaned", Boolean, nullable=False, server_default=text("false"))


def check(table: str, name: str, condition: str) -> CheckConstraint:
    return CheckConstraint(condition, name=f"ck_{table}_{name}")


def finite(column: str) -> str:
    """Condition: NULL or an ordinary number (Postgres sorts NaN above infinity)."""
    return f"{column} > '-Infinity' AND {column} < 'Infinity'"


def one_of(column: str, *values: str) -> str:
    return f"{column} IN ({', '.join(repr(value) for value in values)})"
