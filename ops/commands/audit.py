"""`sluice audit`: proofs, and the history of samples and groups."""

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from ops.commands.common import add, add_run, bus_of, find, runs_folder, store_of, wait_for

if TYPE_CHECKING:
    from ops.paths import RunPaths

Rows = list[dict[str, Any]]


def register(commands: Any) -> None:
    root = commands.add_parser(
        "audit", help="proofs; the history of a sample or a group; drops; the mixture"
    )
    verbs = root.add_subparsers(metavar="VERB", required=True)
    parsers = [
        add(verbs, "verify", "the nine proofs; exits 1 when one fails", verify),
        add(verbs, "sample", "what happened to one sample, as a timeline", sample),
        add(verbs, "group", "what happened to one group, as a timeline", group),
        add(verbs, "drops", "why groups were dropped", drops),
        add(verbs, "mixture", "target shares against realised ones", mixture),
    ]
    for parser in parsers:
        add_run(parser)
        parser.add_argument("--json", action="store_true", help="as JSON")
    parsers[1].add_argument("key", metavar="SAMPLE", help="dataset:version:index")
    parsers[2].add_argument("group", metavar="GROUP", help="a group's id")
    parsers[2].add_argument("--text", action="store_true", help="with prompt and answers")
    parsers[4].add_argument(
        "--history", action="store_true", help="every update, not the newest alone"
    )


def _with_store(
    asked: argparse.Namespace, work: Callable[[str, "RunPaths"], Awaitable[int]]
) -> int:
    async def run() -> int:
        paths = find(asked)
        async with store_of(runs_folder(asked), paths) as url:
            return await work(url, paths)

    return wait_for(run())


def verify(asked: argparse.Namespace) -> int:
    async def work(url: str, paths: "RunPaths") -> int:
        from store.audit import verify as prove

        async with bus_of(runs_folder(asked), paths) as bus:
            proofs = await prove(url, paths.run_id, bus)
        if asked.json:
            print(json.dumps([proof.__dict__ for proof in proofs], default=str))
        else:
            print_proofs(proofs)
        return 0 if all(proof.ok for proof in proofs) else 1

    return _with_store(asked, work)


def print_proofs(proofs: Any) -> None:
    for number, proof in enumerate(proofs, 1):
        print(f"{'holds' if proof.ok else 'FAILS'}  {number} {proof.claim} ({proof.detail})")
        for example in proof.examples:
            print(f"         {json.dumps(example, default=str)}")


def sample(asked: argparse.Namespace) -> int:
    async def work(url: str, paths: "RunPaths") -> int:
        from store import history

        facts = await asyncio.to_thread(history.sample_facts, url, asked.key)
        rows = await asyncio.to_thread(history.sample, url, asked.key, paths.run_id)
        return _tell(asked, facts, rows, f"sample {asked.key}", text=False)

    return _with_store(asked, work)


def group(asked: argparse.Namespace) -> int:
    async def work(url: str, paths: "RunPaths") -> int:
        from store import history

        facts = await asyncio.to_thread(history.group_facts, url, paths.run_id, asked.group)
        rows = await asyncio.to_thread(history.group, url, paths.run_id, asked.group)
        return _tell(asked, facts, rows, f"group {asked.group}", text=asked.text)

    return _with_store(asked, work)


def _tell(
    asked: argparse.Namespace, facts: Mapping[str, Any] | None, rows: Rows, what: str, *, text: bool
) -> int:
    if facts is None and not rows:
        print(f"{what}: the store knows nothing of it", file=sys.stderr)
        return 1
    if asked.json:
        print(json.dumps({"facts": facts, "timeline": rows}, default=str))
        return 0
    print_facts(facts or {}, text=text)
    for row in rows:
        print(event_line(row))
    return 0


LONG = ("prompt", "answers", "token_ids", "supervision")
"""Facts that need more than a line."""


def print_facts(facts: Mapping[str, Any], *, text: bool) -> None:
    from ops.commands.store import shown

    short = {k: v for k, v in facts.items() if k not in LONG and v not in (None, "", [], {})}
    print("  ".join(f"{key}={shown(value, 60)}" for key, value in short.items()))
    if not text:
        return
    print(f"prompt: {facts.get('prompt')!r}")
    for answer in facts.get("answers", ()):
        print(
            f"  answer {answer['generation_index']}: {answer['text']!r}  "
            f"verdict {answer['verdict']}, score {answer['score']}, read as {answer['extracted']!r}; "
            f"reward {answer['reward']}, advantage {answer['advantage']}, weight {answer['weight']}"
        )


def event_line(row: Mapping[str, Any]) -> str:
    """One event of a timeline."""
    from ops.commands.store import shown

    step = "" if row.get("step") is None else f" step {row['step']}"
    detail = row.get("detail")
    if isinstance(detail, Mapping):
        known = {k: v for k, v in detail.items() if v is not None}
        detail = ", ".join(f"{k} {shown(v, 40)}" for k, v in known.items())
    at, group = row.get("at") or "-", row.get("group_id") or ""
    return f"{at:32}  {group:22} {row.get('event')}{step}  {detail or ''}"


def drops(asked: argparse.Namespace) -> int:
    async def work(url: str, paths: "RunPaths") -> int:
        from store.queries import drops as query

        return _table(asked, await asyncio.to_thread(query, url, paths.run_id))

    return _with_store(asked, work)


def mixture(asked: argparse.Namespace) -> int:
    async def work(url: str, paths: "RunPaths") -> int:
        from store.queries import mixture as query

        rows = await asyncio.to_thread(query, url, paths.run_id, history=asked.history)
        return _table(asked, rows)

    return _with_store(asked, work)


def _table(asked: argparse.Namespace, rows: Rows) -> int:
    from ops.commands.store import print_table

    if asked.json:
        print(json.dumps(rows, default=str))
    else:
        print_table(rows)
    return 0
