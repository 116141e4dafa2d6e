"""`sluice runs`, `sluice status`, `sluice stop`: what is there, what it waits for; end it, delete it."""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ops.commands.common import add, add_run, add_runs, bus_of, find, runs_folder, wait_for

if TYPE_CHECKING:
    from broker.jetbus import JetStreamBus
    from ops.paths import RunPaths
    from ops.progress import Pulse
    from ops.view import RunView

ASK_WAIT_S = 1.0
ANSWER_LIMIT_S = 5.0
"""A process that computes may be late; one that has not answered by then is told as missing."""
READ_WAIT_S = 10.0
POLL_S = 1.0


def register(commands: Any) -> None:
    parser = add(commands, "runs", "the runs of a folder, newest last", runs)
    parser.add_argument("--json", action="store_true", help="an array of objects")
    parser.add_argument(
        "--delete",
        metavar="RUN",
        help="delete the run of this id: its logs, objects and folder; its history in Postgres stays",
    )
    add_runs(parser)
    parser = add(commands, "status", "where a run stands, and what each process waits for", status)
    parser.add_argument("--json", action="store_true", help="one object")
    add_run(parser)
    parser = add(commands, "stop", "end a run cleanly: open groups end, the state is kept", stop)
    parser.add_argument(
        "--wait",
        type=float,
        default=120.0,
        metavar="S",
        help="how long to wait for its end (default 120)",
    )
    add_run(parser)


def runs(asked: argparse.Namespace) -> int:
    from ops.paths import RunPaths, run_ids

    folder = runs_folder(asked)
    if asked.delete is not None:
        return wait_for(_delete(folder, asked.delete))
    rows = [_row(RunPaths(folder / run)) for run in run_ids(folder)]
    if asked.json:
        print(json.dumps(rows))
        return 0
    for row in rows:
        score = "" if row["eval_last"] is None else f"  held-out {100 * row['eval_last']:.1f} %"
        print(f"{row['run_id']}  {row['status']}  step {row['steps'] or '-'}{score}")
    if not rows:
        print(f"no run in {folder}", file=sys.stderr)
    return 0


def _row(paths: "RunPaths") -> dict[str, Any]:
    from ops.paths import read_summary

    summary = read_summary(paths)
    known = {key: summary.get(key) for key in ("steps", "eval_first", "eval_last", "wall_s")}
    if not paths.lock.exists():
        status = "begun by workers"
    elif supervisor_alive(paths):
        status = "running"
    else:
        status = summary.get("status", "interrupted")
    return {"run_id": paths.run_id, "status": status, **known}


async def _delete(folder: Path, name: str) -> int:
    """Logs first: a run whose folder is gone could not be named any more."""
    import os
    import shutil

    from broker.errors import BadConfiguration, Unreachable
    from ops.paths import find_run, lock_run

    paths = find_run(folder, name)
    if paths.run_id != name:
        raise BadConfiguration(
            f"--delete {name!r}: expected a whole run id, such as {paths.run_id}"
        )
    lock = lock_run(paths)
    try:
        async with bus_of(folder, paths) as bus:
            if statuses := await _who_is_there(bus):
                roles = sorted(str(status["role"]) for status in statuses)
                raise BadConfiguration(
                    f"run {name}: {', '.join(roles)} still at work; `sluice stop {name}` ends it first"
                )
            streams = await bus.delete_run()
    except Unreachable as error:
        raise BadConfiguration(
            f"run {name}: {error}; if that broker is gone for good, remove {paths.root}"
        ) from error
    else:
        shutil.rmtree(paths.root)
    finally:
        os.close(lock)
    held = "logs, objects" if streams else "the broker held nothing of it;"
    print(f"{name}: {held} and {paths.root} deleted; its history stays in the store")
    return 0


async def _who_is_there(bus: "JetStreamBus") -> Sequence[Mapping[str, object]]:
    """A process that computes may be late with its answer, and must not lose its logs for that."""
    deadline = time.monotonic() + ANSWER_LIMIT_S
    while time.monotonic() < deadline:
        if statuses := await bus.ask_status(ASK_WAIT_S):
            return statuses
    return []


def supervisor_alive(paths: "RunPaths") -> bool:
    """Whether a `sluice run` holds the run's lock."""
    import os

    from broker.errors import BadConfiguration
    from ops.paths import lock_run

    try:
        os.close(lock_run(paths))
    except BadConfiguration:
        return True
    return False


def status(asked: argparse.Namespace) -> int:
    return wait_for(_status(runs_folder(asked), find(asked), as_json=asked.json))


async def _status(folder: Path, paths: "RunPaths", *, as_json: bool) -> int:
    from broker.telemetry import now_us
    from ops import settings
    from ops.asking import look_at_all
    from ops.progress import plain_line, role_lines, silent_roles
    from ops.view import read_view

    steps = settings.load(paths.config).run.steps
    async with bus_of(folder, paths) as bus:
        view = await read_view(bus, READ_WAIT_S)
        pulse = await look_at_all(bus, ASK_WAIT_S, ANSWER_LIMIT_S)
    if as_json:
        print(json.dumps(_tree(view, pulse, steps), default=str))
        return 0
    if view.ended is not None:
        print(f"{paths.run_id}: {view.ended.status} ({view.ended.reason})")
    print(plain_line(view, pulse, steps=steps, now_us=now_us()))
    for line in role_lines(pulse.statuses):
        print(line)
    if view.ended is None and not pulse.statuses:
        print("no process of this run answers")
    elif view.ended is None:
        for role in silent_roles(pulse.statuses):
            print(f"{role}: no answer within {ANSWER_LIMIT_S:.0f} s; it does not run, or is stuck")
    for kind, count in view.incidents.most_common():
        print(f"incident {kind}: {count}")
    return 0


def _tree(view: "RunView", pulse: "Pulse", steps: int) -> dict[str, Any]:
    return {
        "step": view.step,
        "steps": steps,
        "version": view.version,
        "ended": view.ended.status if view.ended else None,
        "draining": view.draining,
        "trained_groups": view.trained_groups,
        "dropped": dict(view.dropped),
        "incidents": dict(view.incidents),
        "queues": dict(pulse.depths),
        "processes": list(pulse.statuses),
    }


def stop(asked: argparse.Namespace) -> int:
    return wait_for(_stop(runs_folder(asked), find(asked), limit_s=asked.wait))


async def _stop(folder: Path, paths: "RunPaths", *, limit_s: float) -> int:
    from ops.asking import request_stop
    from ops.view import read_view

    async with bus_of(folder, paths) as bus:
        view = await read_view(bus, READ_WAIT_S)
        if view.ended is not None:
            print(f"{paths.run_id} has ended already: {view.ended.status}")
            return 0
        await request_stop(bus, "sluice stop")
        if not await bus.ask_status(ASK_WAIT_S):
            print("no process of this run answers; it ends when it is taken up again")
            return 0
        deadline = asyncio.get_running_loop().time() + limit_s
        while asyncio.get_running_loop().time() < deadline:
            view = await read_view(bus, READ_WAIT_S)
            if view.ended is not None:
                print(f"{paths.run_id} ended: {view.ended.status}, step {view.step}")
                return 0
            await asyncio.sleep(POLL_S)
    print(
        f"{paths.run_id} is still draining after {limit_s:.0f} s; see `sluice status`",
        file=sys.stderr,
    )
    return 1
