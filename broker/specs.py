"""Specifications of verifiers: a name with options, or `FILE.py:Name`, which is code."""

import re
from collections.abc import Mapping, Sequence

_CODE = re.compile(r".+\.py:\w+", re.DOTALL)


def is_code(name: str) -> bool:
    """Whether a verifier's name is `FILE.py:Name`: nothing else is ever imported from a file."""
    return _CODE.fullmatch(name) is not None


def code_in(spec: object) -> str | None:
    """The first `FILE.py:Name` anywhere in a specification; None: it names no code.

    Under whatever key: which options of which verifier name another one is theirs to say. Only a
    configuration may name code: what a dataset's row or an answer says must never be imported.
    """
    waiting = [spec]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            if is_code(value):
                return value
        elif isinstance(value, Mapping):
            waiting.extend(value.values())
        elif isinstance(value, Sequence):
            waiting.extend(value)
    return None
