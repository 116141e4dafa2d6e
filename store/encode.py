"""Rows as COPY takes them in its binary form, a column at a time; what Postgres cannot hold made visible.

An integer beyond its column's range is refused here: cut to its bytes it would wrap without a word.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from struct import Struct
from struct import error as StructError

from sqlalchemy import (
    BigInteger,
    Boolean,
    DateTime,
    Double,
    Integer,
    LargeBinary,
    Numeric,
    Table,
    Text,
)
from sqlalchemy.dialects.postgresql import ENUM, JSONB

from store.clean import clean_text, json_text
from store.merge import ORDER
from store.models import TABLES

Values = Sequence[object]
Changed = set[int]
"""Places of the rows of which something had to be changed."""
Encode = Callable[[Values, Changed], list[bytes]]
"""A column's values to its fields: the length and the bytes of each."""

BEGIN, END = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"
NULL = b"\xff\xff\xff\xff"
LENGTH, COUNT = Struct(">i"), Struct(">h")
FLAGS = {None: NULL, False: b"\0\0\0\1\0", True: b"\0\0\0\1\1"}
EPOCH_US = 946_684_800_000_000
"""Microseconds at which Postgres begins to count: the year 2000."""


@dataclass(frozen=True)
class Columns:
    """Names of a table's columns, and how each is written."""

    names: tuple[str, ...]
    encodes: tuple[Encode, ...]
    flagged: bool
    """Whether the last column is `cleaned`."""


def copied(columns: Columns, rows: Sequence[Mapping[str, object]]) -> bytes:
    """All that COPY reads of these rows, at least one.

    ValueError, naming the column, when a value is not of its kind.
    """
    changed: Changed = set()
    fields: list[list[bytes]] = []
    for name, encode in zip(columns.names, columns.encodes, strict=True):
        if columns.flagged and len(fields) == len(columns.names) - 1:
            values: Values = [place in changed for place in range(len(rows))]
        else:
            values = [row.get(name) for row in rows]
        try:
            fields.append(_encoded(encode, values, changed))
        except (
            AttributeError,
            KeyError,
            TypeError,
            ArithmeticError,
            ValueError,
            StructError,
        ) as error:
            raise ValueError(f"{name}: {error}") from error
    count = COUNT.pack(len(fields))
    return b"".join((BEGIN, *chain.from_iterable(zip(repeat(count), *fields, strict=False)), END))


def _encoded(encode: Encode, values: Values, changed: Changed) -> list[bytes]:
    first, count = values[0], len(values)
    if (
        encode in SAME and values.count(first) == count
    ):  # a run's name, a policy's, what is not said
        alone: Changed = set()
        fields = encode([first], alone) * count
        if alone:
            changed.update(range(count))
        return fields
    return encode(values, changed)


def _texts(values: Values, changed: Changed) -> list[bytes]:
    known: dict[object, bytes] = {None: NULL}  # most are said again and again
    fields: list[bytes] = []
    for place, text in enumerate(values):
        field = known.get(text)
        if field is None:
            if not isinstance(text, str):
                raise TypeError(f"{text!r:.80}: expected text")
            cleaned = clean_text(text)
            field = _field(cleaned.encode())
            if cleaned == text:
                known[text] = field
            else:
                changed.add(place)
        fields.append(field)
    return fields


def _jsons(values: Values, changed: Changed) -> list[bytes]:
    fields: list[bytes] = []
    last, field = object(), NULL
    for place, value in enumerate(values):
        if value is None:
            fields.append(NULL)  # not jsonb's own null: what nobody has said yet may be said later
            continue
        if value is not last:
            text, dirty = json_text(value)
            field = _field(b"\1" + text.encode())  # 1: the version of jsonb's form
            last = value
            if dirty:
                changed.add(place)
                last = object()
        fields.append(field)
    return fields


def _reals(values: Values, changed: Changed) -> list[bytes]:
    pack, finite = Struct(">id").pack, math.isfinite
    fields: list[bytes] = []
    for place, value in enumerate(values):
        if value is None:
            fields.append(NULL)
        elif finite(value):  # type: ignore[arg-type] - TypeError says what else it is
            fields.append(pack(8, value))
        else:
            changed.add(place)
            fields.append(NULL)
    return fields


def _integers(form: str, size: int) -> Encode:
    pack = Struct(form).pack

    def encode(values: Values, _: Changed) -> list[bytes]:
        try:
            if None not in values:
                return list(map(pack, repeat(size), values))
            return [NULL if value is None else pack(size, value) for value in values]
        except StructError as error:
            raise ValueError(f"out of range of {size} bytes, or no integer: {error}") from error

    return encode


def _flags(values: Values, _: Changed) -> list[bytes]:
    return [FLAGS[value] for value in values]  # type: ignore[index]


def _bytes(values: Values, _: Changed) -> list[bytes]:
    return [NULL if value is None else _field(value) for value in values]  # type: ignore[arg-type]


def _moments(values: Values, _: Changed) -> list[bytes]:
    pack = Struct(">iq").pack
    return [NULL if value is None else pack(8, value - EPOCH_US) for value in values]  # type: ignore[operator]


def _wides(values: Values, _: Changed) -> list[bytes]:
    return [NULL if value is None else _numeric(int(value)) for value in values]  # type: ignore[call-overload]


def _numeric(value: int) -> bytes:
    """Postgres' numeric: how many digits of base 10,000, the first one's power, the sign, no decimals."""
    digits: list[int] = []
    rest = abs(value)
    while rest:
        rest, digit = divmod(rest, 10_000)
        digits.insert(0, digit)
    sign = 0x4000 if value < 0 else 0
    return _field(
        Struct(f">hhHh{len(digits)}h").pack(len(digits), max(0, len(digits) - 1), sign, 0, *digits)
    )


def _field(data: bytes) -> bytes:
    return LENGTH.pack(len(data)) + data


ENCODES: tuple[tuple[type, Encode], ...] = (
    (ENUM, _texts),  # before Text, of which SQLAlchemy makes it one
    (Text, _texts),
    (JSONB, _jsons),
    (Double, _reals),  # before Numeric, of which SQLAlchemy makes it one
    (Numeric, _wides),
    (BigInteger, _integers(">iq", 8)),  # before Integer, of which it is one
    (Integer, _integers(">ii", 4)),
    (Boolean, _flags),
    (DateTime, _moments),
    (LargeBinary, _bytes),
)
SAME = frozenset((_texts, _flags, _bytes, _moments))
"""Where values that are equal are written alike; 0.0 and -0.0 are not."""


def _columns(table: Table) -> Columns:
    names = tuple(column.name for column in table.columns)
    kinds = [column.type for column in table.columns]
    return Columns(names, tuple(map(_encode_of, kinds)), names[-1] == "cleaned")


def _encode_of(kind: object) -> Encode:
    return next(encode for of, encode in ENCODES if isinstance(kind, of))


COLUMNS = {name: _columns(TABLES[name]) for name in ORDER}
