"""Import: rows in, a version of a dataset out. Streams; every bad row is named with its number and reason."""

import hashlib
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from broker.errors import BadConfiguration
from store.datasets import jsonl, layout, parquet
from store.datasets.keys import Keys
from store.datasets.layout import Manifest
from store.datasets.rows import Row, read

Prepare = Callable[[dict[str, Any]], dict[str, Any]]
Check = Callable[[Row], None]
"""Raises ValueError for a row that could never be graded."""
SHOWN = 20


@dataclass
class Counts:
    rows: int = 0
    labeled: int = 0
    refused: int = 0
    shown: list[str] = field(default_factory=list)
    """The first bad rows."""
    domains: Counter[str] = field(default_factory=Counter)
    levels: Counter[str] = field(default_factory=Counter)
    verifiers: Counter[str] = field(default_factory=Counter)


def run(
    path: Path,
    name: str,
    to: Path,
    *,
    check: Check,
    prepare: Prepare = dict,
    skip_bad: bool = False,
) -> tuple[Path, Manifest]:
    """Import a file as the dataset `name`; (its folder, its manifest).

    prepare: renames a raw row's fields. skip_bad: leave bad rows out, listed in `refused.jsonl`; otherwise
    one bad row refuses the file, after all of them were found. Raises BadConfiguration.
    """
    layout.checked_name(name)
    target = to / name
    target.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".import-", dir=target) as scratch:
            folder = Path(scratch) / "version"
            folder.mkdir()
            counts, digest = _write(path, folder, check, prepare)
            _refuse(path, counts, skip_bad)
            manifest = _manifest(name, digest, counts)
            layout.write_manifest(folder, manifest)
            return _placed(folder, target / manifest.version), manifest
    finally:
        # Empty only if nothing was imported, now or ever.
        with suppress(OSError):
            target.rmdir()


def _manifest(name: str, digest: str, counts: Counts) -> Manifest:
    return Manifest(
        dataset=name,
        version=digest[:12],
        sha256=digest,
        rows=counts.rows,
        labeled=counts.labeled,
        refused=counts.refused,
        domains=dict(sorted(counts.domains.items())),
        levels=dict(sorted(counts.levels.items())),
        verifiers=dict(sorted(counts.verifiers.items())),
    )


def _placed(folder: Path, final: Path) -> Path:
    """Moved into place in one step. The same content, imported again, is there already."""
    if not final.exists():
        folder.rename(final)
    elif not (final / layout.MANIFEST).is_file():
        shutil.rmtree(final)
        folder.rename(final)
    return final


def _refuse(path: Path, counts: Counts, skip_bad: bool) -> None:
    listed = "\n".join(counts.shown)
    if counts.refused and not skip_bad:
        more = counts.refused - len(counts.shown)
        rest = f"\n... and {more} more" if more else ""
        raise BadConfiguration(
            f"{path}: {counts.refused} bad rows (--skip-bad leaves them out):\n{listed}{rest}"
        )
    if not counts.rows:
        raise BadConfiguration(f"{path}: no usable row\n{listed}".rstrip())


def _write(path: Path, folder: Path, check: Check, prepare: Prepare) -> tuple[Counts, str]:
    counts, digest = Counts(), hashlib.sha256()
    with (
        Keys() as keys,
        parquet.Writer(folder / layout.ROWS) as writer,
        (folder / layout.REFUSED).open("w", encoding="utf-8") as refused,
    ):
        for number, raw in raw_rows(path):
            try:
                if isinstance(raw, ValueError):
                    raise raw
                row = read(prepare(raw), number - 1)
                check(row)
                _refuse_duplicate(keys, row, number)
            except ValueError as error:
                counts.refused += 1
                if len(counts.shown) < SHOWN:
                    counts.shown.append(f"{path}:{number}: {error}")
                refused.write(json.dumps({"row": number, "reason": str(error)}) + "\n")
                continue
            writer.write(row)
            digest.update(canonical(row))
            _count(counts, row)
    if not counts.refused:
        (folder / layout.REFUSED).unlink()
    return counts, digest.hexdigest()


def raw_rows(path: Path) -> Iterator[jsonl.Numbered]:
    """(row number from 1, raw row) of a JSONL or Parquet file, by its ending."""
    if path.suffix == ".parquet":
        return enumerate(parquet.raw_rows(path), 1)
    if path.suffix in (".jsonl", ".json"):
        return jsonl.numbered_rows(path)
    raise BadConfiguration(f"{path}: expected a file that ends in .jsonl or .parquet")


def canonical(row: Row) -> bytes:
    """The bytes that a row adds to the digest: the same however it was spelled."""
    return orjson.dumps(
        parquet.spelled(row), option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
    )


def _refuse_duplicate(keys: Keys, row: Row, number: int) -> None:
    named = {"index": f"i{row.index}"}
    if row.key is not None:
        named["id"] = f"k{row.key}"
    for what, key in named.items():
        first = keys.first(key, number)
        if first != number:
            raise ValueError(f"{what} {key[1:]} is already that of row {first}")


def _count(counts: Counts, row: Row) -> None:
    counts.rows += 1
    counts.labeled += row.labeled
    if row.domain is not None:
        counts.domains[row.domain] += 1
    if row.level is not None:
        counts.levels[row.level] += 1
    if row.verifier is not None:
        counts.verifiers[_name(row.verifier)] += 1


def _name(verifier: Mapping[str, Any]) -> str:
    return str(verifier["name"])
