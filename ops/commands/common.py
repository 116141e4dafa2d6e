"""What several commands share: their options, and how they reach a run's services."""

import argparse
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker.jetbus import JetStreamBus
    from ops.paths import RunPaths

Commands = "argparse._SubParsersAction[argparse.ArgumentParser]"
Action = Callable[[argparse.Namespace], int]


def add(commands: Any, name: str, help_text: str, action: Action) -> argparse.ArgumentParser:
    """A command of its own."""
    parser = commands.add_parser(name, help=help_text, description=help_text)
    parser.set_defaults(action=action)
    return parser


def add_runs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runs",
        type=Path,
        metavar="DIR",
        help="folder of the runs (default: $SLUICE_RUNS or ./runs)",
    )


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's id, its beginning, or `last`")
    add_runs(parser)


def add_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="A.B=C",
        help="override one key of the configuration",
    )


def runs_folder(asked: argparse.Namespace) -> Path:
    from ops.paths import default_runs

    return asked.runs.resolve() if asked.runs is not None else default_runs()


def find(asked: argparse.Namespace) -> "RunPaths":
    from ops.paths import find_run

    return find_run(runs_folder(asked), asked.run)


def wait_for(work: Coroutine[Any, Any, int]) -> int:
    import asyncio

    return asyncio.run(work)


@asynccontextmanager
async def store_of(runs: Path, paths: "RunPaths | None" = None) -> AsyncIterator[str]:
    """The store's URL: the run's, the environment's, or the embedded server's, started if need be."""
    from broker.settings import NatsSettings
    from ops.paths import services_dir
    from ops.services import Services

    services = Services(services_dir(runs), NatsSettings(), _named(paths, "store"))
    try:
        yield await services.open_postgres()
    finally:
        await services.close()


@asynccontextmanager
async def bus_of(runs: Path, paths: "RunPaths") -> "AsyncIterator[JetStreamBus]":
    """The run's logs, on the server it names or on the embedded one."""
    from broker import jetstream
    from ops import settings
    from ops.paths import services_dir
    from ops.services import Services

    nats = settings.load(paths.config).nats
    services = Services(services_dir(runs), nats, "")
    try:
        url = await services.open_nats()
        bus = await jetstream.connect(nats.model_copy(update={"url": url}), paths.run_id)
        try:
            yield bus
        finally:
            await bus.close()
    finally:
        await services.close()


def _named(paths: "RunPaths | None", table: str) -> str | None:
    """The URL that the run's configuration or the environment names."""
    import os

    from ops import settings

    if paths is not None:
        return getattr(settings.load(paths.config), table).url
    return os.environ.get(f"SLUICE_{table.upper()}__URL")
