"""Where tests find the shared data, which a checkout need not have."""

import json
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[1]
_PLACES = (_ROOT / "shared" / "data", _ROOT.parent / "shared" / "data")


def rows(name: str) -> list[dict[str, object]]:
    """The JSON lines of a shared file; skips the test when it is not there."""
    path = next((place / name for place in _PLACES if (place / name).is_file()), None)
    if path is None:
        pytest.skip(f"shared data {name} is not in this checkout")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
