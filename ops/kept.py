"""The configuration as it is kept in a run's folder, by which commands find the run again."""

import os
from typing import Any

import structlog

from ops import settings, toml
from ops.paths import RunPaths
from ops.settings import Configuration

log = structlog.get_logger()


def write(configuration: Configuration, paths: RunPaths) -> None:
    paths.config.touch(mode=0o600)  # it may hold a password
    paths.config.write_text(toml.dumps(_recorded(configuration)))


def write_if_new(configuration: Configuration, paths: RunPaths) -> None:
    """By a worker that nobody supervises; where it may not write, commands look elsewhere."""
    if paths.config.exists():
        return
    unfinished = paths.root / f".config.{os.getpid()}"
    try:
        paths.root.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(toml.dumps(_recorded(configuration)))
        os.replace(unfinished, paths.config)
    except OSError as error:
        log.warning("configuration_not_kept", folder=str(paths.root), reason=str(error))


def _recorded(configuration: Configuration) -> dict[str, Any]:
    """What came from the environment stays there."""
    tree = configuration.model_dump(mode="json", exclude_none=True)
    for assignment in settings.from_environment(os.environ):
        table, _, key = assignment.partition("=")[0].partition(".")
        if table in ("nats", "store"):
            tree[table].pop(key, None)
    return tree
