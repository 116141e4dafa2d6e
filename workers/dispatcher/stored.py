"""Samples from a dataset that `sluice data import` made, or from any Parquet file with verl's columns."""

from pathlib import Path

from broker.errors import BadConfiguration
from broker.messages import ChatTurn
from store.datasets import layout, stored
from store.datasets.rows import Prompt as StoredPrompt
from store.datasets.rows import Row
from workers.dispatcher.items import Item, ItemSet, Prompt
from workers.dispatcher.settings import SourceOptions, SourceSettings


class StoredOptions(SourceOptions):
    """`source.options` of a dataset."""

    row_domain: str | None = None
    """Only rows of this domain of the dataset's own; None: all."""


def is_stored(path: Path) -> bool:
    return path.is_dir() or path.suffix == ".parquet"


def load(path: Path, settings: SourceSettings, *, max_rows: int | None) -> ItemSet:
    """The rows that the options take, at most `max_rows`. Raises BadConfiguration."""
    options = StoredOptions.of(settings)
    manifest = None
    if path.is_dir():
        folder = layout.find(path)
        manifest = layout.read_manifest(folder)
        path = folder / layout.ROWS
    items: list[Item] = []
    seen: dict[int, int] = {}
    for place, row in enumerate(stored.rows_of(path), start=1):
        if max_rows is not None and len(items) >= max_rows:
            break
        if seen.setdefault(row.index, place) != place:
            raise BadConfiguration(
                f"{path}:{place}: index {row.index}: expected each once, since sample keys are made of "
                f"it; row {seen[row.index]} has it too"
            )
        if options.row_domain in (None, row.domain):
            items.append(_item(row))
    if not items:
        raise BadConfiguration(f"source.{settings.domain}: {path}: no usable row")
    if manifest is None:
        return ItemSet(path.stem, stored.digest_of(path)[:12], tuple(items))
    return ItemSet(manifest.dataset, manifest.version, tuple(items))


def _item(row: Row) -> Item:
    # Tests are a gold of their own.
    options = {k: v for k, v in row.options.items() if row.labeled or k != "tests"}
    return Item(
        row.index,
        _prompt(row.prompt),
        row.target if row.labeled else None,
        row.solution,
        row.difficulty,
        options,
        verifier=None if row.verifier is None else dict(row.verifier),
        level=row.level,
    )


def _prompt(prompt: StoredPrompt) -> Prompt:
    if isinstance(prompt, str):
        return prompt
    return tuple(ChatTurn.model_validate({"role": r, "content": c}) for r, c in prompt)
