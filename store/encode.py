"""A row as COPY takes it: a value per column, in order; what Postgres cannot hold made visible."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Double, Table, Text
from sqlalchemy.dialects.postgresql import JSONB

from store.clean import clean_text, json_text
from store.merge import ORDER
from store.models import TABLES


@dataclass(frozen=True)
class Columns:
    """Names of a table's columns, and the places of those that need a look."""

    names: tuple[str, ...]
    texts: tuple[int, ...]
    jsons: tuple[int, ...]
    reals: tuple[int, ...]
    flagged: bool
    """Whether the last column is `cleaned`."""


def _columns(table: Table) -> Columns:
    columns = list(table.columns)

    def places(kind: type) -> tuple[int, ...]:
        return tuple(at for at, column in enumerate(columns) if isinstance(column.type, kind))

    names = tuple(column.name for column in columns)
    return Columns(names, places(Text), places(JSONB), places(Double), names[-1] == "cleaned")


COLUMNS = {name: _columns(TABLES[name]) for name in ORDER}


def encode(columns: Columns, values: Mapping[str, object]) -> list[object]:
    """TypeError or ValueError when a value is not of its column's kind, or has no JSON form."""
    row = [values.get(name) for name in columns.names]
    changed = False
    for at in columns.texts:
        text = row[at]
        if text is None:
            continue
        if not isinstance(text, str):
            raise TypeError(f"{columns.names[at]} is {text!r:.80}: expected text")
        if not text.isascii() or "\x00" in text:
            row[at] = cleaned = clean_text(text)
            changed = changed or cleaned != text
    for at in columns.jsons:
        if row[at] is not None:
            row[at], dirty = json_text(row[at])
            changed = changed or dirty
    for at in columns.reals:
        number = row[at]
        if isinstance(number, float) and not math.isfinite(number):
            row[at], changed = None, True
    if columns.flagged:
        row[-1] = changed
    return row
