"""What an answer is: a number, a list, a tuple, an interval, a relation, a word. Its type decides.

`read` takes the whole text or refuses it: Unreadable, or TooLarge.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from workers.verifiers.mathtext import split, units
from workers.verifiers.mathtext.normal import clean
from workers.verifiers.mathtext.parser import parse
from workers.verifiers.mathtext.tree import MAX_CHARS, Node, TooLarge, Unreadable
from workers.verifiers.mathtext.vocabulary import NUMBER_NAMES, PROSE


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number or expression, with its unit if one was written."""

    node: Node
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Items:
    """Several answers. A list and a set have no order; brackets have one, and their shape counts."""

    kind: Literal["list", "set", "brackets"]
    items: tuple["Value", ...]
    shape: str = ""
    """Opening and closing bracket, such as `(]`."""


@dataclass(frozen=True, slots=True)
class Union:
    """A union of sets or intervals, in any order."""

    parts: tuple["Value", ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """`left op right op right ...`; each op one of = < > <= >= != in."""

    sides: tuple["Value", ...]
    operators: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    rows: tuple[tuple["Value", ...], ...]


@dataclass(frozen=True, slots=True)
class Written:
    """What is compared as it is written: a word, a clock time or ratio, digits in a base."""

    kind: Literal["text", "colon", "base"]
    text: str


Value = Quantity | Items | Union | Relation | Matrix | Written

_INTEGER = re.compile(r"-?\d{1,18}")
_ELLIPSIS = re.compile(r"\\ldots|\.\.\.")
_WORDS_ONLY = re.compile(r"(?:\\(?:text|mathrm)\{)?\s*([A-Za-z][A-Za-z' -]*[A-Za-z])\s*\}?")
_LETTER = re.compile(r"\\text\{\s*\(?([A-Za-z])\)?\s*\}|\(?([A-Z])\)?")
_COLON = re.compile(r"\d+(?: ?: ?\d+)+")
_BASE = re.compile(r"(\d[0-9A-Za-z]*)_(?:\{?(\d+)\}?|\{?\\text\{(\w+)\}\}?)")
_MATRIX = re.compile(r"\\begin\{([pbvBV]?matrix|array)\}(?:\{[clr|]*\})?(.*)\\end\{\1\}")
_CURRENCY = re.compile(r"(-?) ?\\(usd|eur|gbp) ?(.+)")
MAX_WORDS = 5
MAX_DEPTH = 20


@lru_cache(maxsize=4096)
def read(text: str) -> Value:
    """The answer that a text states. Raises Unreadable or TooLarge."""
    if len(text) > MAX_CHARS:
        raise TooLarge(f"{len(text)} characters; the limit is {MAX_CHARS}")
    try:
        return _read(clean(text), 0)
    except RecursionError as error:
        raise TooLarge("nested too deep") from error


def _read(text: str, depth: int) -> Value:
    if _INTEGER.fullmatch(text):
        return Quantity(parse(text))
    if not text:
        raise Unreadable("empty")
    if depth > MAX_DEPTH:
        raise TooLarge("nested too deep")
    if _ELLIPSIS.search(text):
        raise Unreadable("ellipsis")
    if r"\approx" in text:
        raise Unreadable("approximation")
    return (
        _literal(text)
        or _matrix(text)
        or _several(text, depth)
        or _relation(text, depth)
        or _union(text, depth)
        or _bracketed(text, depth)
        or _quantity(text)
    )


def _literal(text: str) -> Value | None:
    if text in (r"\emptyset", r"\{\}", r"\{ \}"):
        return Items("set", ())
    if letter := _LETTER.fullmatch(text):
        return Written("text", letter.group(1) or letter.group(2))
    if (words := _WORDS_ONLY.fullmatch(text)) and not units.is_expression(words.group(1)):
        return _words(words.group(1), bare=not text.startswith("\\"))
    if _COLON.fullmatch(text):
        return Written("colon", ":".join(str(int(part)) for part in text.split(":")))
    if base := _BASE.fullmatch(text):
        name = base.group(2) or NUMBER_NAMES.get(base.group(3).lower(), "")
        if not name:
            raise Unreadable(f"base {base.group(3)!r}")
        return Written("base", f"{base.group(1).lower().lstrip('0') or '0'}_{{{name}}}")
    return None


def _words(text: str, *, bare: bool) -> Written:
    words = text.split()
    if bare and (len(words) > MAX_WORDS or PROSE & {word.lower() for word in words}):
        raise Unreadable("prose")
    return Written("text", " ".join(words).lower())


def _matrix(text: str) -> Value | None:
    found = _MATRIX.fullmatch(text)
    if found is None:
        return None
    rows = [row for row in found.group(2).split(r"\\") if row.strip()]
    cells = [[cell.strip() for cell in row.split("&")] for row in rows]
    if not cells or len({len(row) for row in cells}) != 1:
        raise Unreadable("a matrix with rows of different lengths")
    return Matrix(tuple(tuple(_read(cell, 1) for cell in row) for row in cells))


def _several(text: str, depth: int) -> Value | None:
    """A list; `x = 1, 2` states x once for all of it."""
    parts = split.at_commas(text)
    if len(parts) == 1:
        signs = split.plus_minus(text)
        if len(signs) == 1:
            return None
        return Items("list", tuple(_read(part, depth + 1) for part in signs))
    items: list[Value] = []
    for part in parts:
        item = _read(part.strip(), depth + 1)
        items += item.items if isinstance(item, Items) and item.kind == "list" else (item,)
    first = items[0]
    others_are_plain = all(isinstance(item, Quantity) for item in items[1:])
    if isinstance(first, Relation) and first.operators == ("=",) and others_are_plain:
        items[0] = first.sides[1]
    return Items("list", tuple(items))


def _relation(text: str, depth: int) -> Value | None:
    sides, operators = split.at_relations(text)
    if not operators:
        return None
    if not all(side.strip() for side in sides):
        raise Unreadable("a relation without a side")
    return Relation(tuple(_read(side.strip(), depth + 1) for side in sides), tuple(operators))


def _union(text: str, depth: int) -> Value | None:
    parts = split.at_top(text, (r"\cup",))
    if len(parts) == 1:
        return None
    return Union(tuple(_read(part.strip(), depth + 1) for part in parts))


def _bracketed(text: str, depth: int) -> Value | None:
    outer = split.outer_brackets(text)
    if outer is None:
        return None
    opening, inside, closing = outer
    parts = [part.strip() for part in split.at_top(inside, (",", ";"))]
    if opening == r"\{":
        return Items("set", tuple(_read(part, depth + 1) for part in parts))
    if len(parts) == 1 and opening == "(" and closing == ")":
        # Brackets around all of it mean nothing; very many are left to the parser and its limit.
        return _read(inside.strip(), depth + 1) if depth < MAX_DEPTH - 5 else None
    if len(parts) == 1 and r"\pm" not in inside:
        return None
    items = tuple(_read(part, depth + 1) for part in parts)
    return Items("brackets", items, opening + closing)


def _quantity(text: str) -> Value:
    if currency := _CURRENCY.fullmatch(text):
        sign, unit, amount = currency.groups()
        found = units.split_off(amount)
        return Quantity(parse(sign + (found[0] if found[1] else amount)), unit)
    number, unit = units.split_off(text)
    return Quantity(parse(number), unit)
