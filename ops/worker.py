"""One process of a deployment: one or several roles of one run, until the run ends or SIGTERM comes.

Exit codes: 0 done or stopped, 1 a bug, 2 configuration or a service that cannot be reached,
3 replaced by another writer of the same role.
"""

import asyncio
import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from itertools import chain, repeat
from types import FrameType
from typing import Protocol

import structlog
import uvloop

from broker.bus import Bus
from broker.errors import BadConfiguration, Replaced, SluiceError
from broker.lease import hold
from broker.messages import Event, RunStarted
from broker.settings import NatsSettings
from broker.telemetry import Health, configure_logging, loop_lag_seconds, serve_http
from broker.topology import Log, kind_subjects
from ops import kept, roles, settings
from ops.failures import first_of
from ops.paths import RunPaths
from ops.preflight import refuse_impossible, refuse_unknown_verifiers, snapshot_every
from ops.processes import keep_freed_memory, limit_threads
from ops.settings import Configuration

DONE, BUG, REFUSED, REPLACED = 0, 1, 2, 3
STOP_LIMIT_S = 9.0
"""From the signal to the end: what has not finished by then is cut off, and redelivered elsewhere."""
LAG_EVERY_S = 1.0


class ServerBus(Bus, Protocol):
    """A bus on a server, where the run's logs may have to be made."""

    async def ensure_logs(self, settings: NatsSettings) -> None: ...


Connect = Callable[[NatsSettings, str, Health], Awaitable[ServerBus]]
"""Settings, run id, and where waits are shown -> the run's bus, connected."""

log = structlog.get_logger()


def leave(signum: int, _frame: FrameType | None) -> None:
    """Before any work is taken, a signal just ends the process."""
    sys.exit(DONE)


def catch_signals_early() -> None:
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, leave)


async def connect_to_nats(settings: NatsSettings, run: str, health: Health) -> ServerBus:
    from broker import jetstream

    return await jetstream.connect(settings, run, health=health)


def main(
    configuration: Configuration,
    names: tuple[str, ...],
    paths: RunPaths,
    *,
    resume: bool,
    connect: Connect = connect_to_nats,
) -> int:
    """Run the roles to the end; returns the exit code."""
    catch_signals_early()
    configure_logging(",".join(names), configuration.telemetry.level)
    try:
        check(configuration, names)
        limit_threads(max(roles.threads_of(name, configuration) for name in names))
        if configuration.model.device == "cpu" and set(names) & roles.COMPUTE:
            keep_freed_memory()
        if set(names) & roles.NEED_MODEL:
            roles.prepare_model(configuration, paths)
        starts = {name: roles.load(name) for name in names}
        tame_collector()
        # Of the time of a message, a good part is the event loop's.
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_work(configuration, starts, paths, resume=resume, connect=connect))
    except BaseExceptionGroup as group:
        return _explain(first_of(group))
    except Exception as error:
        return _explain(error)
    log.info("worker_done")
    return DONE


def tame_collector() -> None:
    """Let Python look for garbage in cycles less often, and never among what was imported.

    Decoding makes objects by the thousand, all of which live on for a while and none of which forms
    a cycle; looking through them again and again took a third of the time.
    """
    gc.freeze()
    gc.set_threshold(100_000, 50, 1000)


def check(configuration: Configuration, names: tuple[str, ...]) -> None:
    unknown = [name for name in names if name not in roles.ROLES]
    if unknown or not names:
        raise BadConfiguration(f"role {unknown}: expected some of {', '.join(roles.ROLES)}")
    if not configuration.run.id:
        raise BadConfiguration("run.id: expected a name; all processes of a run share it")
    if configuration.nats.url is None:
        raise BadConfiguration(
            "nats.url: expected nats://host:port; only `sluice run` starts a server of its own"
        )
    if "verifier" in names:
        refuse_unknown_verifiers(configuration)
    # Where no policy runs, its methods need not be there.
    every = snapshot_every(configuration) if "policy" in names else 1
    refuse_impossible(configuration, snapshot_every=every)


def _explain(error: BaseException) -> int:
    if isinstance(error, Replaced):
        log.error("worker_replaced", reason=str(error))
        return REPLACED
    if isinstance(error, SluiceError):
        log.error("worker_refused", reason=str(error))
        return REFUSED
    log.error("worker_failed", reason=f"{type(error).__name__}: {error}", exc_info=error)
    return BUG


async def _work(
    configuration: Configuration,
    starts: Mapping[str, roles.Start],
    paths: RunPaths,
    *,
    resume: bool,
    connect: Connect,
) -> None:
    stop, health = asyncio.Event(), Health(",".join(starts))
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, ask_to_stop, stop)
    server = serve_http(health, configuration.telemetry)
    log.info("worker_starts", run=configuration.run.id, **_address(health))
    bus = await connect(configuration.nats, configuration.run.id, health)
    try:
        await bus.ensure_logs(configuration.nats)
        await bus.answer_status(health.status)
        started = await bus.last(Log.LEDGER, kind_subjects(bus.run, RunStarted.KIND))
        if started is not None:
            check_same_run(started.event(), configuration)
        kept.write_if_new(configuration, paths)
        post = roles.Post(configuration, paths, bus, health, stop, resume)
        await _until_done([_take_part(name, start, post) for name, start in starts.items()])
    finally:
        await bus.close()
        await asyncio.to_thread(server.shutdown)
        server.server_close()


async def _take_part(name: str, start: roles.Start, post: roles.Post) -> None:
    """A role that has one writer waits for its lease first; a second process of it is a standby."""
    if name not in roles.SINGLE_WRITERS:
        return await start(post)
    # Only the first life may begin an ended run anew: begun again, it may have been ended by a twin.
    lives = chain([post], repeat(replace(post, resume=False)))
    await hold(post.bus, name, lambda: start(next(lives)), health=post.health, stop=post.stop)


def _address(health: Health) -> dict[str, object]:
    return {key: value for key, value in health.status().items() if key in ("telemetry", "pid")}


def check_same_run(started: Event, configuration: Configuration) -> None:
    """A run is trained with one configuration from its start to its end."""
    if isinstance(started, RunStarted) and started.config_sha256 != settings.digest(configuration):
        settings.check_same(json.loads(started.config), configuration, configuration.run.id)


async def _until_done(work: list[Coroutine[None, None, None]]) -> None:
    async with asyncio.TaskGroup() as group:
        lag = group.create_task(_measure_lag())
        tasks = [group.create_task(one) for one in work]
        await asyncio.wait(tasks)
        lag.cancel()


def ask_to_stop(stop: asyncio.Event) -> None:
    """Set `stop`, and see to it that the process leaves in time, whatever its threads compute."""
    stop.set()
    log.info("worker_stops")
    watchdog = threading.Timer(STOP_LIMIT_S, _cut_off)
    watchdog.daemon = True
    watchdog.start()


def _cut_off() -> None:
    # Python would wait for its threads. What they do is redone from the logs.
    log.warning("worker_cut_off", after_s=STOP_LIMIT_S)
    sys.stderr.flush()
    os._exit(DONE)


async def _measure_lag() -> None:
    gauge = loop_lag_seconds.labels(structlog.contextvars.get_contextvars().get("role", ""))
    while True:
        before = time.monotonic()
        await asyncio.sleep(LAG_EVERY_S)
        gauge.set(max(0.0, time.monotonic() - before - LAG_EVERY_S))
