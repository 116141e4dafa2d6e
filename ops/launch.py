"""From a configuration file to a finished run: the folder, the supervisor, what is said at the end."""

import asyncio
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog

from broker.errors import BadConfiguration
from ops import kept, roles, settings
from ops.closing import summary_text
from ops.local import Supervisor
from ops.paths import RunPaths, find_run, lock_run, read_summary
from ops.preflight import refuse_unusable
from ops.progress import make_display
from ops.settings import Configuration

FINISHED, INCOMPLETE, INTERRUPTED = 0, 1, 130


def new_run_id(name: str, runs: Path, now: datetime) -> str:
    """`name-date-time`, counted on when two runs start in one second."""
    first = f"{name}-{now:%Y%m%d-%H%M%S}"
    tries = (first, *(f"{first}-{n}" for n in range(2, 100)))
    return next(run for run in tries if not (runs / run).exists())


def prepare(
    config: Path | None, overrides: tuple[str, ...], runs: Path, *, resume: str | None
) -> tuple[Configuration, RunPaths]:
    """The configuration with its run's id, and where the run lives. Nothing is written yet."""
    if resume is not None:
        paths = find_run(runs, resume)
        configuration = settings.load(config or paths.config, overrides)
        before = settings.load(paths.config).model_dump(mode="json")
        settings.check_same(before, configuration, paths.run_id)
        return _with_id(configuration, paths.run_id), paths
    if config is None:
        raise BadConfiguration("expected a configuration file, or --resume RUN")
    configuration = settings.load(config, overrides)
    run_id = configuration.run.id or new_run_id(configuration.run.name, runs, datetime.now(UTC))
    paths = RunPaths(runs / run_id)
    if paths.config.exists():
        raise BadConfiguration(
            f"run.id {run_id}: this run exists; `sluice run --resume {run_id}` goes on with it"
        )
    return _with_id(configuration, run_id), paths


def _with_id(configuration: Configuration, run_id: str) -> Configuration:
    run = configuration.run.model_copy(update={"id": run_id})
    return configuration.model_copy(update={"run": run})


def launch(
    configuration: Configuration, paths: RunPaths, overrides: tuple[str, ...], *, resume: bool
) -> int:
    """Run it to the end; the exit code is 0 only when it finished and the proofs hold."""
    if resume and (summary := complete(paths, configuration.run.steps)) is not None:
        return say_complete(summary, paths)
    refuse_unusable(configuration)
    paths.make()
    lock = lock_run(paths)
    try:
        kept.write(configuration, paths)
        roles.prepare_model(configuration, paths)
        _log_to(paths.logs / "supervisor.log")
        return asyncio.run(_supervise(configuration, paths, resume=resume))
    finally:
        os.close(lock)


def complete(paths: RunPaths, steps: int) -> dict[str, Any] | None:
    """The summary of a run that has finished with so many steps; None while there is something to do."""
    summary = read_summary(paths)
    done = summary.get("status") == "finished" and summary["steps"] >= steps
    return summary if done else None


def say_complete(summary: dict[str, Any], paths: RunPaths) -> int:
    """What came of it, and how to have more; the exit code is the one it ended with."""
    print(f"run {paths.run_id} has finished already; `--set run.steps=N` goes on to more steps")
    print(summary_text(summary))
    failed = [name for name, holds in summary["proofs"].items() if not holds]
    print(f"  proofs: {f'FAIL {failed}' if failed else 'all hold'}; report: {paths.report}")
    return INCOMPLETE if failed else FINISHED


def _log_to(path: Path) -> None:
    """The supervisor's own log lines would disturb its display."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory(path.open("a", buffering=1)),
    )


async def _supervise(configuration: Configuration, paths: RunPaths, *, resume: bool) -> int:
    display = make_display(configuration.run.steps, paths.run_id)
    supervisor = Supervisor(configuration, paths, display, resume=resume)
    try:
        holds = await supervisor.run(sys.stdout)
    finally:
        await supervisor.close()
    if supervisor.interrupts:
        return INTERRUPTED
    ended = supervisor.view.ended
    return FINISHED if holds and ended is not None and ended.status == "finished" else INCOMPLETE
