"""Rows of a JSONL file, one at a time: (row number from 1, table or what is wrong with the line)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from broker.errors import BadConfiguration

LINE_BYTES = 64 * 1024 * 1024

Numbered = tuple[int, dict[str, Any] | ValueError]


def numbered_rows(path: Path) -> Iterator[Numbered]:
    """Empty lines are passed over, but counted. Raises BadConfiguration when the file cannot be read."""
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(LINE_BYTES + 1):
                number += 1
                if line.strip():
                    yield number, _row(line)
    except OSError as error:
        raise BadConfiguration(f"{path}: cannot be read: {error.strerror}") from error


def _row(line: bytes) -> dict[str, Any] | ValueError:
    if len(line) > LINE_BYTES:
        return ValueError(f"longer than {LINE_BYTES} bytes")
    try:
        row = json.loads(line.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        return ValueError(f"not UTF-8: {error.reason} at byte {error.start}")
    except (ValueError, RecursionError) as error:
        return ValueError(f"not JSON: {error}")
    if not isinstance(row, dict):
        return ValueError(f"expected an object, got {type(row).__name__}")
    return row


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON number")
