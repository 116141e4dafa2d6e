"""All roles of one run on this machine: services, processes, live progress, and an end in order.

The run's logs are the state; this process may be killed at any time and `--resume` goes on. Ctrl-C
once ends the run cleanly, twice stops the processes where they are, to be resumed later.
"""

import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from typing import TextIO

import structlog

from broker import jetstream
from broker.bus import Bus, Cursor
from broker.errors import SluiceError
from broker.messages import Incident
from broker.telemetry import now_us, writer_id
from broker.topology import Log
from ops.children import Child, worker_job
from ops.closing import close_run
from ops.failures import first_of
from ops.paths import RunPaths, services_dir, write_json
from ops.processes import descendants, memory_bytes
from ops.progress import Display, Pulse, queue_depths
from ops.services import Services
from ops.settings import Configuration
from ops.view import RunView, read_view

FLOW = (Log.REQUESTS, Log.GENERATED, Log.VERIFIED, Log.ANNOTATED, Log.LEDGER)
FOLLOW_WAIT_S = 0.25
READ_LIMIT_S = 30.0
PULSE_S = 1.0
"""Between two looks at queues and waits."""
MEMORY_S = 3.0
ASK_WAIT_S = 0.3
LEAVE_LIMIT_S = 11.0
"""A worker leaves within 10 s of SIGTERM."""
CLOSING_LIMIT_S = 120.0
"""After the run's end: how long the roles may take, unless the recorder still catches up."""

log = structlog.get_logger()


class Supervisor:
    """One run, from its first process to its last."""

    def __init__(
        self, configuration: Configuration, paths: RunPaths, display: Display, *, resume: bool
    ) -> None:
        self.configuration = configuration
        self.paths = paths
        self.view = RunView()
        self.peak_memory_bytes = 0
        self.interrupts = 0
        self.services = Services(
            services_dir(paths.root.parent), configuration.nats, configuration.store.url
        )
        self._display = display
        self._started_us = now_us()
        self._resume = resume
        self._children: list[Child] = []
        self._pulse = Pulse()
        self._progress = 0
        self._bus: Bus | None = None
        self._stopping: asyncio.Task[None] | None = None

    # --- the run ---

    async def run(self, out: TextIO) -> bool | None:
        """To the run's end, or until interrupted, and what is said then on `out`.

        Returns whether the proofs hold; None when nothing was begun. Services stay open: `close`
        ends them.
        """
        self._catch_interrupts()
        self._display.say(f"run {self.paths.run_id} in {self.paths.root}")
        await self.services.open_nats()
        settings = self.configuration.nats.model_copy(update={"url": self.services.nats_url})
        async with AsyncExitStack() as stack:
            self._bus = bus = await jetstream.connect(settings, self.paths.run_id)
            stack.push_async_callback(bus.close)
            await bus.ensure_logs(settings)
            try:
                async with asyncio.TaskGroup() as group:
                    background = [
                        group.create_task(self.services.watch()),
                        group.create_task(self._watch_pulse(bus)),
                    ]
                    self._start(group, self._role_counts())
                    await self._open_store()
                    self._start(group, {"recorder": 1})
                    await self._follow(bus)
                    for task in background:
                        task.cancel()
            except BaseExceptionGroup as failures:
                raise first_of(failures) from None
            finally:
                await self._end_children()
            # Once more from the start: the last processes wrote while they left.
            self.view = await read_view(bus, READ_LIMIT_S)
            self._display.close()
            if self.view.ended is None:
                print(f"stopped at step {self.view.step}; go on with: {self._resume_command()}", file=out)
                return None
            return await close_run(self, bus, out)

    async def close(self) -> None:
        self._display.close()
        await self.services.close()
        write_json(self.paths.pids, {role: [] for role in self._pids()})

    def _resume_command(self) -> str:
        return f"sluice run --resume {self.paths.run_id} --runs {self.paths.root.parent}"

    def _role_counts(self) -> dict[str, int]:
        c = self.configuration
        counts = dict.fromkeys(("learner", "dispatcher", "policy"), 1)
        return counts | {"rollout": c.rollout.processes, "verifier": c.verifier.processes}

    async def _open_store(self) -> None:
        from store.schema import upgrade

        await self.services.open_postgres()
        await asyncio.to_thread(upgrade, self.services.store_url)

    @property
    def store_url(self) -> str:
        return self.services.store_url

    @property
    def timings(self) -> dict[str, float | None]:
        """Seconds that the demo's promises are about."""
        view, started = self.view, self._started_us

        def between(first: int | None, last: int | None) -> float | None:
            return None if first is None or last is None else round((last - first) / 1e6, 3)

        return {
            "total_s": between(started, now_us()),
            "start_s": between(started, view.started_us),
            "warmup_s": between(view.started_us, view.ready_us),
            "first_step_s": between(view.ready_us, view.first_step_us),
        }

    # --- processes ---

    def _start(self, group: asyncio.TaskGroup, counts: Mapping[str, int]) -> None:
        environment = {
            "SLUICE_NATS__URL": self.services.nats_url,
            "SLUICE_STORE__URL": self.services.store_url,
        }
        for role, count in counts.items():
            for number in range(count):
                job = worker_job(
                    role,
                    number,
                    self.paths.config,
                    self.paths.root.parent,
                    self.paths.logs,
                    environment={name: url for name, url in environment.items() if url},
                    resume=self._resume and role == "dispatcher",
                )
                child = Child(job)
                self._children.append(child)
                group.create_task(
                    child.keep(
                        progress=lambda: self._progress,
                        may_end=self._may_end,
                        changed=self._write_pids,
                    )
                )

    def _may_end(self) -> bool:
        return self.view.ended is not None or self.interrupts > 1

    def _pids(self) -> dict[str, list[int]]:
        pids: dict[str, list[int]] = {"supervisor": [os.getpid()], **self.services.pids()}
        for child in self._children:
            pids.setdefault(child.job.role, []).extend([child.pid] if child.pid else [])
        return pids

    def _write_pids(self) -> None:
        write_json(self.paths.pids, self._pids())

    async def _end_children(self) -> None:
        async with asyncio.TaskGroup() as group:
            for child in self._children:
                group.create_task(child.end(LEAVE_LIMIT_S))
        self._write_pids()

    # --- what is going on ---

    async def _follow(self, bus: Bus) -> None:
        """Read the ledger until the run is over and everybody has left."""
        cursor = await bus.cursor(Log.LEDGER, 0)
        try:
            closing_since: float | None = None
            clock = asyncio.get_running_loop().time
            while not all(child.done for child in self._children):
                await self._read(cursor)
                self._display.show(self.view, self._pulse)
                if self.view.ended is None:
                    closing_since = None
                    continue
                closing_since = closing_since or clock()
                if clock() - closing_since > CLOSING_LIMIT_S:
                    self._close_late()
        finally:
            await cursor.close()

    async def _read(self, cursor: Cursor) -> None:
        for stored in await cursor.read(500, FOLLOW_WAIT_S):
            self.view.apply_stored(stored)

    def _close_late(self) -> None:
        """The run has ended long ago: only a recorder that still catches up may stay."""
        behind = self.view.recorder_behind()
        for child in self._children:
            if not child.done and not (child.job.role == "recorder" and behind):
                log.warning("role_lingers", role=child.job.name)
                child.signal(signal.SIGTERM)

    async def _watch_pulse(self, bus: Bus) -> None:
        """Ask queues and processes, again and again; the answers are for people."""
        loop, memory_at = asyncio.get_running_loop(), 0.0
        while True:
            with suppress(SluiceError):  # a broker that restarts; shown as it was
                states = {name: await bus.state(name) for name in FLOW}
                statuses = tuple(await bus.ask_status(ASK_WAIT_S))
                self._progress = sum(state.last for state in states.values())
                self._pulse = Pulse(
                    statuses, queue_depths(states, statuses), self.peak_memory_bytes
                )
            if loop.time() >= memory_at:
                memory_at = loop.time() + MEMORY_S
                used = await asyncio.to_thread(self._measure_memory)
                self.peak_memory_bytes = max(self.peak_memory_bytes, used)
            await asyncio.sleep(PULSE_S)

    def _measure_memory(self) -> int:
        roots = [os.getpid(), *(pid for pids in self.services.pids().values() for pid in pids)]
        return memory_bytes(sorted({pid for root in roots for pid in descendants(root)}))

    # --- interruption ---

    def _catch_interrupts(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        loop.add_signal_handler(signal.SIGTERM, self._interrupt_at_once)

    def _interrupt(self) -> None:
        self.interrupts += 1
        if self.interrupts == 1 and self._bus is not None and self.view.started_us is not None:
            self._display.say("Ctrl-C: ending the run cleanly; once more to stop at once")
            self._stopping = asyncio.create_task(request_stop(self._bus, "Ctrl-C"))
        else:
            self._interrupt_at_once()

    def _interrupt_at_once(self) -> None:
        self.interrupts = max(2, self.interrupts)
        self._display.say("stopping the processes; go on later with --resume")
        for child in self._children:
            child.signal(signal.SIGTERM)


async def request_stop(bus: Bus, why: str) -> None:
    """Ask the dispatcher to drain and end the run."""
    await bus.publish(
        Incident(
            writer_id=writer_id("ops"),
            at_us=now_us(),
            kind="stop_requested",
            role="ops",
            detail=why,
        )
    )
