"""Reading and exporting a version of a dataset."""

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from broker.errors import BadConfiguration
from store.datasets import layout, parquet
from store.datasets.importing import canonical
from store.datasets.layout import Manifest
from store.datasets.rows import Row, read


def rows(folder: Path) -> Iterator[Row]:
    """The rows of a version, in their order."""
    return rows_of(folder / layout.ROWS)


def rows_of(path: Path) -> Iterator[Row]:
    """The rows of a Parquet file; BadConfiguration names the first bad one."""
    for place, raw in enumerate(parquet.raw_rows(path)):
        try:
            if isinstance(raw, ValueError):
                raise raw
            yield read(raw, place)
        except ValueError as error:
            raise BadConfiguration(f"{path}:{place + 1}: {error}") from error


def digest_of(path: Path) -> str:
    """What the version of these rows would be, had they been imported."""
    digest = hashlib.sha256()
    for row in rows_of(path):
        digest.update(canonical(row))
    return digest.hexdigest()


def export(folder: Path, to: Path) -> Manifest:
    """Copy a version to another folder, after checking that its rows are what the manifest says."""
    manifest = layout.read_manifest(folder)
    digest = digest_of(folder / layout.ROWS)
    if digest != manifest.sha256:
        raise BadConfiguration(
            f"{folder}: rows with digest {digest[:12]}; the manifest says {manifest.version}"
        )
    to.mkdir(parents=True, exist_ok=True)
    for name in (layout.ROWS, layout.MANIFEST):
        shutil.copyfile(folder / name, to / name)
    return manifest
