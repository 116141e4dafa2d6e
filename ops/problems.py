"""What is wrong with the values of a table of the configuration, a line each."""

from typing import get_args

from pydantic import BaseModel, ValidationError

CREDENTIALS = {"url", "user", "password"}
"""Keys whose values no message may show."""


def problems(error: ValidationError, table: type[BaseModel]) -> list[str]:
    """What is wrong with the values that were to make a `table`, a line each."""
    found = error.errors(include_url=False)
    # A list with a bad item is reported once more, as too short.
    inner = [e for e in found if not any(_is_inside(other["loc"], e["loc"]) for other in found)]
    return [_problem(e["loc"], e["type"], e["msg"], e["input"], table) for e in inner]


Location = tuple[int | str, ...]


def _is_inside(inner: Location, outer: Location) -> bool:
    return len(inner) > len(outer) and inner[: len(outer)] == outer


def _problem(
    location: Location, kind: str, message: str, value: object, table: type[BaseModel]
) -> str:
    """One line: key, what was expected, value."""
    if kind == "extra_forbidden":
        message = f"no such key; expected some of {', '.join(_keys_beside(location, table))}"
    name = ".".join(map(str, location)) or "(whole)"
    got = (
        "its value is not shown" if name.rpartition(".")[2] in CREDENTIALS else f"got {value!r:.80}"
    )
    return f"{name}: {message} ({got})"


def _keys_beside(location: Location, root: type[BaseModel]) -> list[str]:
    """The keys of the table that the last key of `location` was put into."""
    tables: list[type[BaseModel]] = [root]
    for key in location[:-1]:
        if isinstance(key, str):
            tables = _tables_below(tables, key) or tables
    return list(tables[0].model_fields)


def _tables_below(tables: list[type[BaseModel]], key: str) -> list[type[BaseModel]]:
    """The tables that may lie under a key, or, of several to choose from by name, the one so named."""
    if key in tables[0].model_fields:
        return _tables_in(tables[0].model_fields[key].annotation)
    return [t for t in tables if "name" in t.model_fields and t.model_fields["name"].default == key]


def _tables_in(annotation: object) -> list[type[BaseModel]]:
    """The settings classes that an annotation is about, be it optional or one of several."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [table for a in get_args(annotation) for table in _tables_in(a)]
