"""All roles of one run on this machine: services, processes, live progress, and an end in order.

The run's logs are the state; this process may be killed at any time and `--resume` goes on. Ctrl-C
once ends the run cleanly, twice stops the processes where they are, to be resumed later.
"""

import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import TextIO

import structlog

from broker import jetstream
from broker.bus import Bus, Cursor
from broker.errors import TooLong
from broker.telemetry import now_us
from broker.topology import Log
from ops.asking import Watcher, request_stop
from ops.children import Child, worker_job
from ops.closing import close_run
from ops.failures import first_of
from ops.paths import RunPaths, services_dir, write_json
from ops.processes import MemoryPeak, descendants
from ops.progress import Display
from ops.services import Services
from ops.settings import Configuration
from ops.view import Pause, RunView, read_view

FOLLOW_WAIT_S = 0.25
READ_LIMIT_S = 30.0
LEAVE_LIMIT_S = 11.0
"""A worker leaves within 10 s of SIGTERM."""
START_LIMIT_S = 120.0
"""For the dispatcher to begin an ended run anew."""
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
        self.interrupts = 0
        self.services = Services(
            services_dir(paths.root.parent), configuration.nats, configuration.store.url
        )
        self._display = display
        self._started_us = now_us()
        self._resume = resume
        self._pauses: list[Pause] = []
        """Between the earlier life that was cut off, if any, and this one."""
        self._children: list[Child] = []
        self._watcher: Watcher | None = None
        self._memory = MemoryPeak()
        self._bus: Bus | None = None
        self._written: dict[str, list[int]] = {}
        self._told: set[str] = set()
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
            # To the very end: the other run that owns a server may leave while this one closes.
            await stack.enter_async_context(self.services.watched())
            self._bus = bus = await jetstream.connect(settings, self.paths.run_id)
            stack.push_async_callback(bus.close)
            await bus.ensure_logs(settings)
            self._watcher = Watcher(bus, self._look_at_memory)
            self.view = await read_view(bus, READ_LIMIT_S)
            if self.view.ended is None and self.view.last_us is not None:
                self._pauses = [(self.view.last_us, self._started_us)]
                self.view.pauses += self._pauses
            self._told = set(self.view.incidents)  # of an earlier life
            self.paths.summary.unlink(
                missing_ok=True
            )  # an earlier end's, written anew with the next
            try:
                async with asyncio.TaskGroup() as group:
                    await self._live(group, bus, self._watcher)
            except BaseExceptionGroup as failures:
                raise first_of(failures) from None
            finally:
                await self._end_children()
            # Once more from the start: the last processes wrote while they left.
            self.view = await read_view(bus, READ_LIMIT_S)
            self.view.pauses += self._pauses
            self._display.close()
            if self.view.ended is None:
                print(
                    f"stopped at step {self.view.step}; go on with: {self._resume_command()}",
                    file=out,
                )
                return None
            return await close_run(self, bus, out)

    async def _live(self, group: asyncio.TaskGroup, bus: Bus, watcher: Watcher) -> None:
        watching = group.create_task(watcher.watch())
        counts = self._role_counts()
        if self.view.is_complete(self.configuration.run.steps):
            counts = {}  # it ended unseen by its supervisor: only the recorder may be behind
        elif self.view.ended is not None:
            # Everybody else would see an ended run, and leave.
            self._start(group, {"dispatcher": counts.pop("dispatcher")})
            await self._until_begun(bus)
        self._start(group, counts)
        await self._open_store()
        self._start(group, {"recorder": 1})
        await self._follow(bus)
        watching.cancel()

    async def _until_begun(self, bus: Bus) -> None:
        deadline, before = asyncio.get_running_loop().time() + START_LIMIT_S, self.view.starts
        # By its start, not by `ended`: what is begun may have ended again before we look.
        while self.view.starts == before and self.interrupts < 2:
            if asyncio.get_running_loop().time() > deadline:
                raise TooLong(f"dispatcher: no new start of the run within {START_LIMIT_S:.0f} s")
            await asyncio.sleep(FOLLOW_WAIT_S)
            self.view = await read_view(bus, READ_LIMIT_S)

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
        wait_s = self.configuration.store.connect_wait_s
        await asyncio.to_thread(upgrade, self.services.store_url, wait_s=wait_s)

    @property
    def store_url(self) -> str:
        return self.services.store_url

    @property
    def pauses_s(self) -> list[tuple[float, float]]:
        return [(begin / 1e6, end / 1e6) for begin, end in self.view.pauses]

    @property
    def peak_memory_bytes(self) -> int:
        return self._memory.most_bytes

    @property
    def timings(self) -> dict[str, float | None]:
        return self.view.timings(self._started_us, now_us())

    # --- processes ---

    def _start(self, group: asyncio.TaskGroup, counts: Mapping[str, int]) -> None:
        if self.interrupts > 1:
            return
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
                        progress=self._progress,
                        is_over=self._is_over,
                        changed=self._write_pids,
                    )
                )

    def _progress(self) -> int:
        return self._watcher.pulse.stored if self._watcher is not None else 0

    def _is_over(self, code: int) -> bool:
        """Whether a process that ended so need not come back."""
        return self.interrupts > 1 or (code == 0 and self.view.ended is not None)

    def _pids(self) -> dict[str, list[int]]:
        pids: dict[str, list[int]] = {"supervisor": [os.getpid()], **self.services.pids()}
        for child in self._children:
            pids.setdefault(child.job.role, []).extend([child.pid] if child.pid else [])
        return pids

    def _write_pids(self) -> None:
        if (pids := self._pids()) != self._written:
            write_json(self.paths.pids, pids)
            self._written = pids

    async def _end_children(self) -> None:
        async with asyncio.TaskGroup() as group:
            for child in self._children:
                group.create_task(child.end(LEAVE_LIMIT_S))
        self._write_pids()

    # --- what is going on ---

    async def _follow(self, bus: Bus) -> None:
        """Read the ledger until the run is over and everybody has left."""
        cursor = await bus.cursor(Log.LEDGER, self.view.position)
        try:
            closing_since: float | None = None
            clock = asyncio.get_running_loop().time
            while not all(child.done for child in self._children):
                await self._read(cursor)
                self._show()
                self._write_pids()
                if self.view.ended is None:
                    closing_since = None
                    continue
                closing_since = closing_since or clock()
                if clock() - closing_since > CLOSING_LIMIT_S:
                    self._close_late()
        finally:
            await cursor.close()

    def _show(self) -> None:
        for kind in self.view.incidents.keys() - self._told:
            self._told.add(kind)
            self._display.say(f"incident: {self.view.last_incident}")
        if self._watcher is not None:
            memory = self._memory.most_bytes
            self._display.show(self.view, self._watcher.pulse, memory_bytes=memory)

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

    def _look_at_memory(self) -> None:
        roots = [os.getpid(), *(pid for pids in self.services.pids().values() for pid in pids)]
        self._memory.look(sorted({pid for root in roots for pid in descendants(root)}))

    # --- interruption ---

    def _catch_interrupts(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        loop.add_signal_handler(signal.SIGTERM, self._interrupt_at_once)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # the terminal is closed
            loop.add_signal_handler(signal.SIGHUP, self._interrupt_at_once)

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
