"""Samples from a JSONL file: every row is checked, a bad one is named by file, line and reason."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationError

from broker.errors import BadConfiguration
from broker.messages import ChatTurn
from store.datasets.rows import finite, sendable
from workers.dispatcher.gsm8k import parse_answer
from workers.dispatcher.items import Item, ItemSet, Prompt
from workers.dispatcher.settings import SourceOptions, SourceSettings


class RowOptions(SourceOptions):
    """`source.options` of a JSONL source."""

    dataset: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]+$")] | None = None
    """Name in sample keys; None: the file's name without its ending."""
    answer_format: Literal["plain", "gsm8k"] = "plain"
    """`gsm8k`: the gold and the solution are both inside the target field."""
    min_solution_steps: Annotated[int, Field(ge=0)] = 0
    max_solution_steps: Annotated[int, Field(ge=0)] | None = None
    """Rows whose solution has fewer or more steps (non-empty lines) are passed over."""

    def takes(self, steps: int | None) -> bool:
        if self.max_solution_steps is None and self.min_solution_steps == 0:
            return True
        top = self.max_solution_steps
        return (
            steps is not None and steps >= self.min_solution_steps and (top is None or steps <= top)
        )


def load(path: Path, settings: SourceSettings, *, max_rows: int | None) -> ItemSet:
    """The rows of a file that the options take, at most `max_rows`, in file order.

    Raises BadConfiguration naming file, line and reason of the first bad row, unless
    `skip_bad`, which loads the rest and keeps the reasons.
    """
    options = RowOptions.of(settings)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadConfiguration(
            f"source.{settings.domain}: {path}: cannot be read: {error.strerror}"
        ) from error
    items: list[Item] = []
    skipped: list[str] = []
    seen: dict[str, int] = {}
    for line_no, line in _lines(data):
        if max_rows is not None and len(items) >= max_rows:
            break
        try:
            item, steps = _item(line, line_no, settings, options, seen)
        except ValueError as error:
            reason = f"{path}:{line_no}: {error}"
            if not settings.skip_bad:
                raise BadConfiguration(
                    f"{reason} (skip_bad = true loads the other rows)"
                ) from error
            skipped.append(reason)
            continue
        if options.takes(steps):
            items.append(item)
    if not items:
        raise BadConfiguration(
            f"source.{settings.domain}: {path}: no usable row ({len(skipped)} bad ones left out)"
        )
    # The digest is of the file, so filters change which rows are drawn but not what a key means.
    version = hashlib.sha256(data).hexdigest()[:12]
    return ItemSet(options.dataset or path.stem, version, tuple(items), tuple(skipped))


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(line number from 1, line) of the non-empty lines."""
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            yield number, line


def _item(
    line: bytes, line_no: int, settings: SourceSettings, options: RowOptions, seen: dict[str, int]
) -> tuple[Item, int | None]:
    """The item in a line and the number of its solution's steps; ValueError says what is wrong."""
    row = _row(line)
    _refuse_duplicate(row, line_no, seen)
    prompt = _prompt(row.get(settings.prompt_field), settings.prompt_field)
    target = _text(row.get(settings.target_field), settings.target_field)
    solution = row.get(settings.solution_field) if settings.solution_field else None
    if options.answer_format == "gsm8k":
        target, solution, steps = parse_answer(target)
    else:
        solution = None if solution is None else _text(solution, str(settings.solution_field))
        steps = None if solution is None else sum(1 for s in solution.splitlines() if s.strip())
    difficulty = row.get("difficulty", steps if options.answer_format == "gsm8k" else None)
    if difficulty is not None and (
        isinstance(difficulty, bool) or not isinstance(difficulty, int | float)
    ):
        raise ValueError(f"difficulty is {difficulty!r}; expected a number")
    extra = row.get("options", {})
    if not isinstance(extra, dict):
        raise ValueError(f"options is {extra!r:.60}; expected a table")
    sendable(extra, "options")
    number = None if difficulty is None else finite(difficulty, "difficulty")
    level = row.get("level")
    level = None if level is None else _text(level, "level")
    return Item(line_no - 1, prompt, target, solution, number, extra, level=level), steps


def _row(line: bytes) -> Mapping[str, object]:
    try:
        row = json.loads(line.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: {error.reason} at byte {error.start}") from error
    except RecursionError as error:
        raise ValueError("not JSON: nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(row, dict):
        raise ValueError(f"expected a JSON object, got {type(row).__name__}")
    return row


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")


def _refuse_duplicate(row: Mapping[str, object], line_no: int, seen: dict[str, int]) -> None:
    """Rows with an `id` must differ in it."""
    if "id" not in row:
        return
    key = repr(row["id"])
    first = seen.setdefault(key, line_no)
    if first != line_no:
        raise ValueError(f"id {key} is already that of line {first}")


def _text(value: object, field: str) -> str:
    """Text, or a number as it would be written."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{field} is {value!r:.60}; expected text that is not empty")
    return sendable(value, field)


def _prompt(value: object, field: str) -> Prompt:
    """Text, or a list of {role, content} that ends with a turn to answer."""
    if not isinstance(value, list):
        if not isinstance(value, str):
            raise ValueError(f"{field} is {value!r:.60}; expected text or a list of turns")
        return _text(value, field)
    try:
        turns = tuple(ChatTurn.model_validate(turn) for turn in value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{field}: {where or 'turn'}: {first['msg']}") from error
    if not turns or turns[-1].role != "user" or not turns[-1].content.strip():
        raise ValueError(f"{field}: expected turns that end with a user's text")
    return turns
