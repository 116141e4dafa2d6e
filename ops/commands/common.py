"""What several commands share: their options, and how they reach a run's services."""

import argparse
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker.jetbus import JetStreamBus
    from broker.settings import NatsSettings
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
    from broker.errors import BadConfiguration
    from broker.wire import NOT_FOUND_STREAM, ApiError
    from ops import settings
    from ops.paths import services_dir
    from ops.services import Services

    nats = settings.load(paths.config).nats
    services = Services(services_dir(runs), nats, "")
    try:
        url = await services.open_nats()
        named = nats.model_copy(update={"url": url})
        async with services.watched(), _bus_on(named, paths.run_id) as bus:
            yield bus
    except ApiError as error:
        if error.err_code != NOT_FOUND_STREAM:
            raise
        raise BadConfiguration(f"run {paths.run_id}: the broker holds no logs of it") from error
    finally:
        await services.close()


async def buses_of(
    runs: Path, names: Sequence[str]
) -> "dict[str, AbstractAsyncContextManager[JetStreamBus]]":
    """By run, what opens its logs: of the named runs, or of all that there are.

    On the server that the environment names, or else of the runs folder.
    """
    import os

    from broker import jetstream
    from broker.errors import BadConfiguration
    from ops.paths import find_run, run_ids

    if not os.environ.get("SLUICE_NATS__URL"):
        found = [find_run(runs, name) for name in names or run_ids(runs)]
        return {paths.run_id: bus_of(runs, paths) for paths in found}
    nats = nats_settings()
    there = await jetstream.list_runs(nats)
    unknown = [name for name in names if name not in there]
    if unknown:
        raise BadConfiguration(
            f"run {', '.join(unknown)}: the broker holds no logs of it; "
            f"known: {', '.join(there[-8:]) or 'none'}"
        )
    return {run: _bus_on(nats, run) for run in names or there}


@asynccontextmanager
async def _bus_on(nats: "NatsSettings", run: str) -> "AsyncIterator[JetStreamBus]":
    from broker import jetstream

    # How many replicas its logs have is not known here: as if there were some, their leaders are asked.
    bus = await jetstream.connect(nats.model_copy(update={"replicas": max(2, nats.replicas)}), run)
    try:
        yield bus
    finally:
        await bus.close()


def nats_settings() -> "NatsSettings":
    """What the environment says of the broker: SLUICE_NATS__URL and its like."""
    import os

    from pydantic import ValidationError

    from broker.errors import BadConfiguration
    from broker.settings import NatsSettings
    from ops import settings

    tree: dict[str, Any] = {"nats": {}}
    for assignment in settings.from_environment(os.environ):
        if assignment.startswith("nats."):
            settings.set_path(tree, assignment)
    try:
        return NatsSettings.model_validate(tree["nats"])
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        said = "; ".join(f"nats.{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in problems)
        raise BadConfiguration(f"SLUICE_NATS__...: {said}") from error


def _named(paths: "RunPaths | None", table: str) -> str | None:
    """The URL that the run's configuration or the environment names."""
    import os

    from ops import settings

    if paths is not None:
        return getattr(settings.load(paths.config), table).url
    return os.environ.get(f"SLUICE_{table.upper()}__URL")
