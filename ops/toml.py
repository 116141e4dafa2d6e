"""Write TOML that `tomllib` reads back to the same values; the standard library only reads it."""

import json
from collections.abc import Iterator, Mapping
from typing import Any


def dumps(tree: Mapping[str, Any]) -> str:
    """A document. Values: text, numbers, booleans, lists and tables of them; None is left out."""
    return "\n".join(_table(tree, ())).strip() + "\n"


def _table(tree: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    plain = {k: v for k, v in tree.items() if v is not None and not _has_header(v)}
    for key, value in plain.items():
        yield f"{_key(key)} = {_value(value)}"
    for key, value in tree.items():
        here = (*path, key)
        header = ".".join(map(_key, here))
        if isinstance(value, Mapping):
            yield f"\n[{header}]"
            yield from _table(value, here)
        elif _has_header(value):
            for item in value:
                yield f"\n[[{header}]]"
                yield from _table(item, here)


def _has_header(value: Any) -> bool:
    """Tables, and lists of nothing but tables, get a section of their own."""
    if isinstance(value, Mapping):
        return True
    return isinstance(value, list) and bool(value) and all(isinstance(v, Mapping) for v in value)


def _key(key: str) -> str:
    plain = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if plain else _text(key)


def _text(text: str) -> str:
    # A JSON string is a TOML basic string but for DEL, which TOML wants escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return repr(value)
        case str():
            return _text(value)
        case list() | tuple():
            return "[" + ", ".join(_value(v) for v in value if v is not None) + "]"
        case Mapping():
            pairs = (f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None)
            return "{" + ", ".join(pairs) + "}"
        case _:
            raise TypeError(f"{value!r} cannot be written as TOML")
