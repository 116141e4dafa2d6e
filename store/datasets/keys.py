"""Keys seen so far, on disk: an import's memory does not grow with its rows."""

import hashlib
import sqlite3
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self


class Keys:
    """Remembers keys with their row numbers, in a temporary file; a context manager."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="sluice-keys-")
        self._db = sqlite3.connect(Path(self._folder.name) / "keys", isolation_level=None)
        # Nothing here outlives the process: no journal, no waiting for the disk.
        self._db.execute("PRAGMA journal_mode = OFF")
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.execute("PRAGMA cache_size = -32768")
        self._db.execute("CREATE TABLE seen (digest BLOB PRIMARY KEY, row INTEGER) WITHOUT ROWID")
        self._db.execute("BEGIN")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._db.close()
        self._folder.cleanup()

    def first(self, key: str, row: int) -> int:
        """The row that had the key first: this one, unless it is a duplicate."""
        digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        added = self._db.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (digest, row))
        if added.rowcount:
            return row
        found = self._db.execute("SELECT row FROM seen WHERE digest = ?", (digest,)).fetchone()
        return int(found[0])
