"""`sluice run` and `sluice worker`."""

import argparse
import sys
from pathlib import Path
from typing import Any

from ops.commands.common import add, add_runs, add_set, runs_folder


def register(commands: Any) -> None:
    parser = add(commands, "run", "train: all roles on this machine, to the end of the run", run)
    parser.add_argument("config", type=Path, nargs="?", metavar="CONFIG", help="a TOML file")
    parser.add_argument("--resume", metavar="RUN", help="go on with a run that was stopped")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="show prompts, memory and disk estimates, start nothing",
    )
    add_set(parser)
    add_runs(parser)
    parser = add(commands, "worker", "one process of a deployment: one or several roles", worker)
    parser.add_argument(
        "roles",
        metavar="ROLE[,ROLE...]",
        help="dispatcher, rollout, verifier, policy, learner, recorder",
    )
    parser.add_argument("config", type=Path, metavar="CONFIG")
    parser.add_argument("--resume", action="store_true", help="dispatcher: begin an ended run anew")
    add_set(parser)
    add_runs(parser)


def run(asked: argparse.Namespace) -> int:
    from ops import launch

    overrides, runs = tuple(asked.set), runs_folder(asked)
    configuration, paths = launch.prepare(asked.config, overrides, runs, resume=asked.resume)
    if asked.dry_run:
        from ops.dry_run import show

        return show(configuration, sys.stdout)
    return launch.launch(configuration, paths, overrides, resume=asked.resume is not None)


def worker(asked: argparse.Namespace) -> int:
    import os

    from ops.processes import die_with

    if parent := os.environ.get("SLUICE_PARENT"):
        die_with(int(parent))
    from ops import settings, worker
    from ops.paths import RunPaths

    configuration = settings.load(asked.config, tuple(asked.set))
    paths = RunPaths(runs_folder(asked) / configuration.run.id)
    names = tuple(dict.fromkeys(asked.roles.split(",")))
    return worker.main(configuration, names, paths, resume=asked.resume)
