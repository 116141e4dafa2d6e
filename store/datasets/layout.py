"""Where datasets lie: DIR/NAME/VERSION/{rows.parquet,manifest.json}. A version is its content's digest."""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from broker.errors import BadConfiguration

ROWS, MANIFEST, REFUSED = "rows.parquet", "manifest.json", "refused.jsonl"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


@dataclass(frozen=True)
class Manifest:
    """What a version holds, and nothing of when and where it was made: the same rows, the same."""

    dataset: str
    version: str
    """First 12 hex digits of sha256."""
    sha256: str
    """Over the rows in canonical JSON, a line each."""
    rows: int
    labeled: int
    refused: int
    """Rows of the input that were left out when the version was first made."""
    domains: dict[str, int]
    levels: dict[str, int]
    verifiers: dict[str, int]


def checked_name(name: str) -> str:
    """Part of sample keys and paths."""
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise BadConfiguration(f"dataset name {name!r}: expected letters, digits, `.`, `_`, `-`")
    return name


def write_manifest(folder: Path, manifest: Manifest) -> None:
    text = json.dumps(asdict(manifest), indent=1, sort_keys=True, ensure_ascii=False)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    try:
        return Manifest(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise BadConfiguration(f"{path}: no manifest of a dataset: {error}") from error


def find(folder: Path) -> Path:
    """The version that a path means: itself, or the only one below; BadConfiguration otherwise."""
    if (folder / MANIFEST).is_file():
        return folder
    versions = sorted(path.parent for path in folder.glob(f"*/{MANIFEST}"))
    if len(versions) == 1:
        return versions[0]
    names = ", ".join(path.name for path in versions) or "none"
    raise BadConfiguration(f"{folder}: expected one version of a dataset; there are: {names}")
