"""Rows with one key become one: in a batch here, in the database by the SQL that says the same.

Facts never change: the first of a key is kept. A group, a step and a run are told of in pieces by several
events; merging is commutative and idempotent, but for two different values of one column, of which one
event alone knows the right one.
"""

from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import Any

from sqlalchemy import Table

from store.columns import GROUP_STATES, STEP_STATUSES
from store.models import TABLES
from store.row import Row, Values

Key = Any
Tables = dict[str, list[Mapping[str, object]]]
Merge = Callable[[Values, Mapping[str, object]], None]

END_COLUMNS = ("drop_reason", "dropped_step", "dropped_staleness", "trained_step", "terminal_at")
"""Of prompt_group: they come together from the event that ended the group."""

ORDER = (
    "run", "run_end", "dataset", "sample", "rendered_prompt", "prompt_group", "generation", "verdict",
    "group_decision", "annotation", "supervision_event", "learner_step", "batch_member", "mixture",
    "weights", "checkpoint", "evaluation", "evaluation_item", "incident",
)  # fmt: skip
"""Tables in the order of writing, the same for all writers: nobody waits in a ring."""


def key_columns(table: Table) -> tuple[str, ...]:
    return tuple(column.name for column in table.primary_key.columns)


KEYS = {name: key_columns(TABLES[name]) for name in ORDER}
KEY_OF: dict[str, Callable[[Mapping[str, object]], Key]] = {
    name: itemgetter(*keys) for name, keys in KEYS.items()
}
"""Values to key: a tuple, or the value itself where one column is the key."""


def gather(rows: Iterable[Row]) -> Tables:
    """Merged rows by table, tables in ORDER, rows sorted by key."""
    said: Tables = {name: [] for name in ORDER}
    for table, values in rows:
        said[table].append(values)
    return {name: _one_a_key(name, found) for name, found in said.items() if found}


def _one_a_key(table: str, rows: list[Mapping[str, object]]) -> list[Mapping[str, object]]:
    key_of, merge = KEY_OF[table], MERGES.get(table)
    found: dict[Key, Mapping[str, object]]
    if merge is None:
        rows.reverse()  # of two with one key the later is kept here, so the first
        found = dict(zip(map(key_of, rows), rows, strict=True))
    else:
        merged: dict[Key, Values] = {}
        for values in rows:
            known = merged.get(key_of(values))
            if known is None:
                merged[key_of(values)] = dict(values)  # a copy: it is merged into
            else:
                merge(known, values)
        found = dict(merged)
    return [found[key] for key in sorted(found)]


def merge_group(known: Values, more: Mapping[str, object]) -> None:
    """Into `known`: the higher state with its end; every other column from whoever knows it."""
    higher = _rank(GROUP_STATES, more["state"]) > _rank(GROUP_STATES, known["state"])
    ends = int(str(known["ends"])) | int(str(more["ends"]))
    for name in END_COLUMNS:
        if higher:
            known[name] = more.get(name)
    _fill(known, more, without=END_COLUMNS)
    if higher:
        known["state"] = more["state"]
    known["ends"] = ends


def merge_step(known: Values, more: Mapping[str, object]) -> None:
    """Into `known`: the higher status; every other column from whoever knows it."""
    if _rank(STEP_STATUSES, more["status"]) > _rank(STEP_STATUSES, known["status"]):
        known["status"] = more["status"]
    _fill(known, more)


def merge_run(known: Values, more: Mapping[str, object]) -> None:
    """Into `known`: the newer event's word, but for the start, which is the first."""
    starts = [at for at in (known.get("started_at"), more.get("started_at")) if at is not None]
    if int(str(more["last_event_id"])) > int(str(known["last_event_id"])):
        older = dict(known)
        known.clear()
        known |= more
        for name in ("name", "config", "config_sha256", "seed", "versions"):
            if known.get(name) is None:
                known[name] = older.get(name)
    else:
        _fill(known, more, without=("ended_at",))
    known["started_at"] = min(starts, default=None)  # type: ignore[type-var]


def _fill(known: Values, more: Mapping[str, object], without: tuple[str, ...] = ()) -> None:
    for name, value in more.items():
        if name not in without and known.get(name) is None:
            known[name] = value


def _rank(order: tuple[str, ...], state: object) -> int:
    return order.index(str(state))


MERGES: dict[str, Merge] = {
    "prompt_group": merge_group,
    "learner_step": merge_step,
    "run": merge_run,
}


def upsert(table: str) -> str:
    """SQL that merges the rows of `staged` into the table, as the functions above would."""
    columns = [column.name for column in TABLES[table].columns]
    names, keys = ", ".join(columns), ", ".join(KEYS[table])
    insert = f"INSERT INTO {table} AS t ({names}) SELECT {names} FROM staged ORDER BY {keys}"
    return f"{insert} {on_conflict(table)}"


def on_conflict(table: str) -> str:
    """The end of an INSERT INTO table AS t: what happens to a row that is there already."""
    keys = ", ".join(KEYS[table])
    if table not in MERGES:
        return f"ON CONFLICT ({keys}) DO NOTHING"
    columns = [column.name for column in TABLES[table].columns]
    sets = ", ".join(
        f"{name} = {_merged(table, name)}" for name in columns if name not in KEYS[table]
    )
    return f"ON CONFLICT ({keys}) DO UPDATE SET {sets}"


def _merged(table: str, name: str) -> str:
    old, new = f"t.{name}", f"EXCLUDED.{name}"
    match table, name:
        case _, "cleaned":
            return f"{old} OR {new}"
        case "prompt_group", "ends":
            return f"{old} | {new}"
        case ("prompt_group", "state") | ("learner_step", "status"):
            return f"greatest({old}, {new})"
        case "prompt_group", _ if name in END_COLUMNS:
            return f"CASE WHEN EXCLUDED.state > t.state THEN {new} ELSE {old} END"
        case "run", "started_at":
            return f"least({old}, {new})"
        case "run", "ended_at" | "status" | "reason":
            return f"CASE WHEN EXCLUDED.last_event_id > t.last_event_id THEN {new} ELSE {old} END"
        case "run", "last_event_id":
            return f"greatest({old}, {new})"
        case "run", _:
            newer = "EXCLUDED.last_event_id > t.last_event_id"
            return f"CASE WHEN {newer} THEN coalesce({new}, {old}) ELSE coalesce({old}, {new}) END"
        case _:
            return f"coalesce({old}, {new})"
