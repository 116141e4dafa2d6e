"""Plain data from a sandbox: decoded without trust, compared by exact type.

`5` is not `5.0` and not `True`. An expected value that came from JSON knows no tuples: its lists also equal
tuples. NaN equals NaN.
"""

import json
import math
from collections.abc import Sequence
from typing import Any, cast


class Malformed(ValueError):
    """Bytes that are no result."""


def decode(line: bytes) -> dict[str, Any]:
    """One reply. Raises Malformed for anything that is none, however it was made."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not a reply: {type(error).__name__}") from error
    if not isinstance(found, dict) or not all(
        isinstance(found.get(name), str) for name in ("at", "token")
    ):
        raise Malformed("not a reply: expected at and token")
    return found


def value(tree: object) -> object:
    """The value that a reply spells. Raises Malformed."""
    try:
        return _value(tree)
    except (LookupError, ValueError, TypeError, RecursionError, OverflowError) as error:
        raise Malformed(f"not a value: {type(error).__name__}") from error


def _value(tree: object) -> object:
    if tree is None or isinstance(tree, bool | str):
        return tree
    if not isinstance(tree, dict) or len(tree) != 1:
        raise ValueError("expected one tag")
    ((tag, body),) = tree.items()
    if tag in _SCALARS:
        return _SCALARS[tag](body)
    if not isinstance(body, list):
        raise ValueError("expected a list")
    parts = [_value(part) for part in body]
    if tag == "d":
        if len(parts) % 2:
            raise ValueError("expected pairs")
        return dict(zip(parts[::2], parts[1::2], strict=True))
    return _COLLECTIONS[tag](parts)


def _complex(body: Sequence[str]) -> complex:
    real, imaginary = body
    return complex(float.fromhex(real), float.fromhex(imaginary))


_SCALARS: dict[str, Any] = {
    "i": lambda body: int(body, 16),
    "f": float.fromhex,
    "b": bytes.fromhex,
    "c": _complex,
}
_COLLECTIONS: dict[str, Any] = {"l": list, "t": tuple, "s": set, "z": frozenset}


def same(expected: object, found: object, *, tolerance: float = 0.0, loose: bool = False) -> bool:
    """Whether two values agree in type and content.

    tolerance: absolute and relative, for floats; with one, whole numbers may stand for floats. loose: the
    expected value came from JSON.
    """
    if tolerance and _number(expected) and _number(found):
        return _close(cast(float, expected), cast(float, found), tolerance)
    kind = type(expected)
    if type(found) is not kind and not (loose and kind is list and type(found) is tuple):
        return False
    if kind is float:
        return expected == found or (expected != expected and found != found)
    if kind is dict:
        ours, theirs = cast("dict[Any, Any]", expected), cast("dict[Any, Any]", found)
        return _keys(ours) == _keys(theirs) and all(
            same(ours[key], theirs[key], tolerance=tolerance, loose=loose) for key in ours
        )
    if kind in (list, tuple):
        left, right = cast("Sequence[Any]", expected), cast("Sequence[Any]", found)
        return len(left) == len(right) and all(
            same(a, b, tolerance=tolerance, loose=loose) for a, b in zip(left, right, strict=True)
        )
    if kind in (set, frozenset):
        return _keys(cast("set[Any]", expected)) == _keys(cast("set[Any]", found))
    return expected == found


def _keys(values: Any) -> set[Any]:
    """Keys with their types: 1, 1.0 and True are one key to a dict."""
    return {_typed(key) for key in values}


def _typed(key: Any) -> tuple[type, Any]:
    if type(key) in (tuple, frozenset):
        return type(key), type(key)(_typed(part) for part in key)
    return type(key), key


def _number(what: object) -> bool:
    return type(what) in (int, float)


def _close(expected: float, found: float, tolerance: float) -> bool:
    if math.isfinite(expected) and math.isfinite(found):
        try:
            return math.isclose(expected, found, rel_tol=tolerance, abs_tol=tolerance)
        except OverflowError:
            return expected == found
    return expected == found or (expected != expected and found != found)


def same_text(expected: str, found: str, *, tolerance: float = 0.0) -> bool:
    """Whether two outputs agree, but for space at the ends of lines and empty lines at the end."""
    left, right = _lines(expected), _lines(found)
    if left == right:
        return True
    if not tolerance or len(left) != len(right):
        return False
    return all(
        _same_line(a.split(), b.split(), tolerance) for a, b in zip(left, right, strict=True)
    )


def _same_line(expected: list[str], found: list[str], tolerance: float) -> bool:
    if len(expected) != len(found):
        return False
    for ours, theirs in zip(expected, found, strict=True):
        if ours == theirs:
            continue
        try:
            close = _close(float(ours), float(theirs), tolerance)
        except ValueError:
            return False
        if not close:
            return False
    return True


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines
