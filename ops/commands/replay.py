"""`sluice replay`: take recorded steps again and compare the weights."""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.errors import BadConfiguration
from ops.commands.common import add, add_run, bus_of, find, runs_folder, wait_for

if TYPE_CHECKING:
    from learner.replay import Replay, Retaken
    from ops.paths import RunPaths

SHOWN_DIGITS = 16


def register(commands: Any) -> None:
    parser = add(
        commands, "replay",
        "redo training from checkpoints and log and compare digests; exits 1 unless all agree; or, with "
        "--policy, decide anew about the recorded groups by another policy and compare",
        replay,
    )  # fmt: skip
    add_run(parser)
    parser.add_argument(
        "--to-step", type=int, metavar="N", help="up to this step (default: the last committed)"
    )
    parser.add_argument(
        "--policy", metavar="FILE", help="a TOML file with a table [policy], or a preset's name"
    )
    parser.add_argument("--json", action="store_true", help="one object; with --policy an array")


def replay(asked: argparse.Namespace) -> int:
    if asked.policy is not None:
        from ops.commands import policy

        if asked.to_step is not None:
            raise BadConfiguration("--to-step: expected without --policy, which takes all groups")
        return policy.compare(asked)
    return wait_for(_replay(asked, runs_folder(asked), find(asked)))


async def _replay(asked: argparse.Namespace, folder: Path, paths: "RunPaths") -> int:
    from ops import roles, settings
    from ops.processes import keep_freed_memory, limit_threads

    c = settings.load(paths.config)
    limit_threads(c.learner.threads)
    keep_freed_memory()
    from learner import replay as learner_replay

    started = time.monotonic()
    async with bus_of(folder, paths) as bus:
        found = await learner_replay.replay(
            bus,
            run=c.run,
            model=c.model,
            model_dir=roles.prepare_model(c, paths),
            settings=c.learner,
            warmup=c.warmup,
            run_dir=paths.root,
            to_step=asked.to_step,
            progress=_silent if asked.json else _tell,
        )
    if asked.json:
        print(json.dumps(tree(paths.run_id, found)))
    else:
        _sum_up(paths.run_id, found, time.monotonic() - started)
    return 0 if found.agrees else 1


def _silent(one: "Retaken") -> None:
    """The object at the end says it all."""


def _tell(one: "Retaken") -> None:
    digest = one.redone[:SHOWN_DIGITS]
    what = (
        f"equal  {digest}"
        if one.equal
        else f"DIFFERS  redone {one.redone}, on record {one.committed}"
    )
    print(f"step {one.step:<6} {one.status:<10} {what}", flush=True)


def _sum_up(run_id: str, found: "Replay", seconds: float) -> None:
    for line in found.missing:
        print(f"missing: {line}", file=sys.stderr)
    if not found.reached:
        print(f"{run_id}: step {found.to_step} cannot be reached")
        return
    differing = [one.step for one in found.retaken if not one.equal]
    begun, count = found.retaken[0].step, len(found.retaken) - 1
    verdict = f"{len(differing)} DIFFER, first {differing[0]}" if differing else "all digests equal"
    print(
        f"{run_id}: step {found.to_step} reached from checkpoint {begun}, "
        f"{count} steps redone in {seconds:.1f} s: {verdict}"
    )


def tree(run_id: str, found: "Replay") -> dict[str, Any]:
    """As `--json` prints it."""
    return {
        "run_id": run_id,
        "to_step": found.to_step,
        "from_checkpoint": found.retaken[0].step if found.retaken else None,
        "reached": found.reached,
        "agrees": found.agrees,
        "steps": [
            {
                "step": one.step,
                "status": one.status,
                "committed": one.committed,
                "redone": one.redone,
                "equal": one.equal,
            }
            for one in found.retaken
        ],
        "missing": found.missing,
    }
