"""Specifications of verifiers: a name with options, or `FILE.py:Name`, which is code."""

from collections.abc import Mapping, Sequence

_NAMING = ("name", "verifier")


def code_in(spec: object) -> str | None:
    """The first `FILE.py:Name` in a specification, also inside its parts; None: it names no code.

    Only a configuration may name code: what a dataset's row or an answer says must never be imported.
    """
    waiting: list[tuple[object, object]] = [("name", spec)]
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, str):
            if key in _NAMING and ":" in value:
                return value
        elif isinstance(value, Mapping):
            waiting.extend(value.items())
        elif isinstance(value, Sequence):
            waiting.extend((key, part) for part in value)
    return None
