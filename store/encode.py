"""A row as COPY takes it: a value per column, in order; what Postgres cannot hold made visible."""

import math
from collections.abc import Callable, Mapping

from sqlalchemy import Column, Double, Text
from sqlalchemy.dialects.postgresql import JSONB

from store.clean import clean_text, json_text
from store.merge import ORDER
from store.models import TABLES

Encoder = Callable[[object], tuple[object, bool]]
"""Value to (what is written, whether it had to be changed)."""


def _text(value: object) -> tuple[object, bool]:
    text = str(value)
    if text.isascii() and "\x00" not in text:
        return text, False
    cleaned = clean_text(text)
    return cleaned, cleaned != text


def _real(value: object) -> tuple[object, bool]:
    number = float(value) if isinstance(value, (int, float)) else math.nan
    return (number, False) if math.isfinite(number) else (None, True)


def _encoder(column: Column) -> Encoder | None:
    match column.type:
        case JSONB():
            return json_text
        case Double():
            return _real
        case Text():
            return _text
        case _:
            return None


COLUMNS: dict[str, list[tuple[str, Encoder | None]]] = {
    name: [(column.name, _encoder(column)) for column in TABLES[name].columns] for name in ORDER
}


def encode(table: str, values: Mapping[str, object]) -> list[object]:
    """TypeError or ValueError when a value has no JSON form."""
    encoded: list[object] = []
    changed = False
    for name, encoder in COLUMNS[table]:
        value = values.get(name)
        if encoder is not None and value is not None:
            value, dirty = encoder(value)
            changed = changed or dirty
        encoded.append(value)
    if COLUMNS[table][-1][0] == "cleaned":
        encoded[-1] = changed
    return encoded
