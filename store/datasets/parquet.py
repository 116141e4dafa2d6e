"""Rows as Parquet: verl's columns, and beside them what those cannot say.

Only this file knows pyarrow. A prompt of plain text becomes one user turn, marked, so that it comes back as
it was.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from broker.errors import BadConfiguration
from store.datasets.rows import Prompt, Row

if TYPE_CHECKING:
    import pyarrow as pa

INSTALL = "pip install --constraint ops/constraints.txt '.[datasets]'"
BATCH = 2_000


def library() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise BadConfiguration(f"datasets: pyarrow is not installed: {INSTALL}") from error
    return pyarrow


def schema() -> "pa.Schema":
    pa = library()
    turns = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
    extra = [("index", pa.int64()), ("labeled", pa.bool_()), ("text_prompt", pa.bool_())]
    return pa.schema(
        [
            ("data_source", pa.string()),
            ("prompt", turns),
            ("ability", pa.string()),
            ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
            ("extra_info", pa.struct(extra)),
            ("id", pa.string()),
            ("solution", pa.string()),
            ("domain", pa.string()),
            ("level", pa.string()),
            ("difficulty", pa.float64()),
            # JSON: paraphrases, the verifier and its options have no fixed shape.
            ("views", pa.string()),
            ("verifier", pa.string()),
            ("options", pa.string()),
        ]
    )


class Writer:
    """Writes rows in batches, as a context manager; memory does not grow with their number."""

    def __init__(self, path: Path) -> None:
        self._pa = library()
        self._schema = schema()
        # Fixed settings: the same rows give the same bytes with the same library.
        self._file = self._pa.parquet.ParquetWriter(path, self._schema, compression="zstd")
        self._waiting: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._flush()
        self._file.close()

    def write(self, row: Row) -> None:
        self._waiting.append(spelled(row))
        if len(self._waiting) >= BATCH:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            table = self._pa.Table.from_pylist(self._waiting, schema=self._schema)
            self._file.write_table(table)
            self._waiting.clear()


def spelled(row: Row) -> dict[str, Any]:
    """A row in the file's columns. Reading it again gives the same row."""
    return {
        "data_source": row.source,
        "prompt": _turns(row.prompt),
        "ability": row.domain,
        "reward_model": {"style": "rule", "ground_truth": row.target},
        "extra_info": {
            "index": row.index,
            "labeled": row.labeled,
            "text_prompt": isinstance(row.prompt, str),
        },
        "id": row.key,
        "solution": row.solution,
        "domain": row.domain,
        "level": row.level,
        "difficulty": row.difficulty,
        "views": _json(list(row.views)) if row.views else None,
        "verifier": None if row.verifier is None else _json(row.verifier),
        "options": _json(row.options) if row.options else None,
    }


def raw_rows(path: Path) -> Iterator[dict[str, Any] | ValueError]:
    """The rows of any Parquet file as tables; of one of ours as they were before `spelled`.

    A row that no table can be made of is the ValueError that says why. Raises BadConfiguration when the file
    cannot be read.
    """
    pa = library()
    try:
        with pa.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=BATCH):
                yield from map(_plain, batch.to_pylist())
    except (OSError, pa.ArrowException) as error:
        raise BadConfiguration(f"{path}: cannot be read as Parquet: {error}") from error


def _plain(row: dict[str, Any]) -> dict[str, Any] | ValueError:
    """JSON columns read; a marked prompt as text."""
    for name in ("views", "verifier", "options"):
        value = row.get(name)
        if isinstance(value, str) and value[:1] in ("{", "["):
            try:
                row[name] = json.loads(value)
            except (ValueError, RecursionError) as error:
                return ValueError(f"{name} is {value!r:.60}: not JSON: {error}")
    if isinstance(row.get("views"), list):
        row["views"] = [_view(view) for view in row["views"]]
    match row:
        case {"extra_info": {"text_prompt": True}, "prompt": [{"content": text}]}:
            row["prompt"] = text
        case _:
            pass
    return row


def _view(view: object) -> object:
    """A view as rows spell it: text, or turns as pairs."""
    if isinstance(view, list) and view and isinstance(view[0], list):
        return [{"role": role, "content": content} for role, content in view]
    return view


def _turns(prompt: Prompt) -> list[dict[str, str]]:
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    return [{"role": role, "content": content} for role, content in prompt]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
