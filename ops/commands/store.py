"""`sluice db` and `sluice sql`: the audit store."""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Any

from ops.commands.common import add, add_runs, buses_of, runs_folder, store_of, wait_for

if TYPE_CHECKING:
    from broker.jetbus import JetStreamBus
    from store.rebuild import Rebuilt


NOT_THERE = 404
"""Code of the broker's answer when a run's logs were deleted, or never made."""


def add_store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--store",
        metavar="URL",
        help="postgresql://... (default: $SLUICE_STORE__URL, or the embedded server of the runs folder)",
    )
    add_runs(parser)


def register(commands: Any) -> None:
    root = commands.add_parser(
        "db", help="the store: upgrade or check its schema, rebuild its rows"
    )
    verbs = root.add_subparsers(metavar="VERB", required=True)
    for verb, what in (("upgrade", "bring the schema up to date"), ("check", "check the schema")):
        parser = add(verbs, verb, what, db)
        parser.set_defaults(verb=verb)
        add_store(parser)
    parser = add(
        verbs, "rebuild", "fill an empty database from the logs; exits 1 when they lack something",
        rebuild,
    )  # fmt: skip
    parser.add_argument("run", nargs="*", metavar="RUN", help="which runs (default: all there are)")
    parser.add_argument("--json", action="store_true", help="an array of objects, one a run")
    add_store(parser)
    parser = add(commands, "sql", "one query to the store", sql)
    parser.add_argument("query", metavar="QUERY", help="SQL; `-` reads it from standard input")
    parser.add_argument("--json", action="store_true", help="an array of objects")
    add_store(parser)


def _name_store(asked: argparse.Namespace) -> None:
    if asked.store:
        os.environ["SLUICE_STORE__URL"] = asked.store


def db(asked: argparse.Namespace) -> int:
    _name_store(asked)
    return wait_for(_db(asked))


async def _db(asked: argparse.Namespace) -> int:
    from store import schema

    async with store_of(runs_folder(asked)) as url:
        if asked.verb == "upgrade":
            schema.upgrade(url)
        state = schema.check(url)
        differences = schema.compare(url) if state.relation == "current" else []
    print(state)
    for difference in differences:
        print(f"differs from the models: {difference}", file=sys.stderr)
    return 0 if state.relation == "current" and not differences else 1


def rebuild(asked: argparse.Namespace) -> int:
    _name_store(asked)
    return wait_for(_rebuild(asked))


async def _rebuild(asked: argparse.Namespace) -> int:
    from store import schema

    folder = runs_folder(asked)
    trees: list[dict[str, Any]] = []
    async with store_of(folder) as url:
        await asyncio.to_thread(schema.upgrade, url)
        try:
            for run, opening in (await buses_of(folder, asked.run)).items():
                trees.append(await _rebuilt(run, opening, url))
                if not asked.json:
                    _tell_rebuilt(trees[-1])
        finally:
            # Also when a later run is refused: what was filled until then is filled.
            if asked.json:
                print(json.dumps(trees))
    if not trees and not asked.json:
        print("no run to rebuild", file=sys.stderr)
    return 0 if all(tree["complete"] for tree in trees) else 1


async def _rebuilt(
    run: str, opening: "AbstractAsyncContextManager[JetStreamBus]", url: str
) -> dict[str, Any]:
    """What was made of one run; one whose logs cannot be had is told, and the next has its turn."""
    from broker.errors import SluiceError, TooLong, Unreachable
    from broker.telemetry import Health
    from broker.wire import ApiError
    from store.rebuild import rebuild as fill
    from store.settings import StoreSettings

    async with AsyncExitStack() as stack:
        try:
            bus = await stack.enter_async_context(opening)
        except SluiceError as error:
            return _not_rebuilt(run, f"its logs cannot be opened: {error}")
        try:
            done = await fill(bus, url, settings=StoreSettings(), health=Health("rebuild"))
        except (Unreachable, TooLong) as error:
            return _not_rebuilt(run, f"its logs cannot be read: {error}")
        except ApiError as error:
            if error.code != NOT_THERE:
                raise
            return _not_rebuilt(run, "the broker holds no logs of this run")
    return _rebuilt_tree(done)


def _not_rebuilt(run: str, why: str) -> dict[str, Any]:
    return {"run_id": run, "complete": False, "lacks": [why]}


def _tell_rebuilt(tree: Mapping[str, Any]) -> None:
    dead = f", {tree['undecodable']} of them unreadable" if tree.get("undecodable") else ""
    what = "complete" if tree["complete"] else "NOT COMPLETE"
    print(f"{tree['run_id']}: {tree.get('messages', 0)} messages{dead}; {what}")
    for line in tree["lacks"]:
        print(f"  {line}")


def _rebuilt_tree(done: "Rebuilt") -> dict[str, Any]:
    return {
        "run_id": done.run_id,
        "messages": done.messages,
        "undecodable": done.undecodable,
        "complete": not done.missing,
        "lacks": done.missing.lines(),
        **done.missing.tree(),
    }


def sql(asked: argparse.Namespace) -> int:
    _name_store(asked)
    return wait_for(_sql(asked))


async def _sql(asked: argparse.Namespace) -> int:
    from store.queries import sql as query

    text = sys.stdin.read() if asked.query == "-" else asked.query
    async with store_of(runs_folder(asked)) as url:
        rows = await asyncio.to_thread(query, url, text)
    if asked.json:
        print(json.dumps(rows))
    else:
        print_table(rows)
    return 0


def print_table(rows: Sequence[Mapping[str, object]]) -> None:
    """Columns as wide as their widest value, on standard output."""
    if rows:
        lines = [[shown(value) for value in row.values()] for row in rows]
        names = list(rows[0])
        widths = [max(map(len, column)) for column in zip(names, *lines, strict=True)]
        for line in [names, ["-" * width for width in widths], *lines]:
            print("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip())
    print(f"({len(rows)} row{'' if len(rows) == 1 else 's'})")


def shown(value: object, longest: int = 100) -> str:
    """One line, control characters made harmless to a terminal."""
    if isinstance(value, float):
        return f"{value:.6g}"
    text = (
        "" if value is None else json.dumps(value) if isinstance(value, dict | list) else str(value)
    )
    text = "".join(c if c.isprintable() else " " for c in text)
    return text if len(text) <= longest else text[: longest - 1] + "…"
