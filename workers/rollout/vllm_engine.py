"""The engine over vLLM: the same promises as the torch engine's, kept by processes that may die.

An engine's processes start with the first weights it is given, and again with the next ones after a death:
until then it has no version, its groups are handed back, and nothing is lost.
"""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog
from transformers import AutoConfig

from broker.gpu_turn import GpuTurn
from broker.offer import Offer
from workers.rollout.concurrency import Room, RowLimit
from workers.rollout.engine import Answer, EngineError, Job, Refused, Result, Untaken
from workers.rollout.forward import Forward
from workers.rollout.limits import Limits
from workers.rollout.model import end_tokens
from workers.rollout.settings import VllmSettings
from workers.rollout.vllm_folder import Folders
from workers.rollout.vllm_home import home, start_reaper
from workers.rollout.vllm_jobs import refusal
from workers.rollout.vllm_live import Live
from workers.rollout.vllm_receive import Incoming
from workers.rollout.vllm_start import Observe, Start, Started, start
from workers.rollout.vllm_turns import Turns

WATCH_S = 0.5

log = structlog.get_logger()


class VllmEngine:
    """Answers jobs with vLLM; its weights come from published versions alone."""

    name = "vllm"

    def __init__(
        self, model_dir: Path, *, cache_dir: Path, device: str, dtype: str, max_rows: int, threads: int,
        settings: VllmSettings, signals: Collection[str] = (), turn: GpuTurn | None = None,
        transfer: str | None = None,
        start: Callable[[Start, Observe], Started] = start,
    ) -> None:  # fmt: skip
        """Starts nothing yet.

        cache_dir: where the folders that vLLM reads are made; best beside the weights, which are linked.
        signals: what to record of each answer beside its tokens; vLLM gives none of it, so they cost a
        torch forward over each answer in this process.
        turn: on the GPU, where the learner computes on it too; the engine's from here on.
        transfer: vLLM's name of the way in which weights may come from the learner's memory.
        """
        self._limits = Limits.of(AutoConfig.from_pretrained(model_dir, local_files_only=True))
        self._ends = end_tokens(model_dir)
        self._home = home(cache_dir)
        self._folders = Folders(model_dir, self._home)
        self._forward = (
            Forward(model_dir, device=device, dtype=dtype, signals=signals) if signals else None
        )
        self._room = Room(RowLimit(max_rows))
        self._start_with = {
            "device": device, "dtype": dtype, "max_rows": max_rows, "threads": threads,
            "positions": self._limits.positions, "transfer": transfer, **settings.model_dump(),
        }  # fmt: skip
        self._start = start
        self._ranks = settings.tensor_parallel
        self._reaper: subprocess.Popen[bytes] | None = None
        self._live: Live | None = None
        """The one that answers."""
        self._newest: Live | None = None
        """The one started last, which may be ending."""
        self._loads: set[asyncio.Task[None]] = set()
        self._beginning = False
        """There may be processes that nobody but the reaper knows yet."""
        self._watch: asyncio.Task[None] | None = None
        self._loading = asyncio.Lock()
        self._turns = None if turn is None else Turns(turn, self._sleep)
        self._sampled_before = 0
        """By engines that have ended."""
        self._closed = False

    @property
    def version(self) -> int | None:
        return None if self._live is None else self._live.version

    @property
    def rows(self) -> int:
        return 0 if self._live is None else self._live.rows

    @property
    def sampled(self) -> int:
        return self._sampled_before + (0 if self._live is None else self._live.sampled)

    async def generate(self, jobs: Sequence[Job]) -> list[Result]:
        self._check_open()
        if self._live is None:
            raise EngineError("no model weights are loaded: none came yet, or the engine has ended")
        return await _all(self._answer(job) for job in jobs)

    async def _answer(self, job: Job) -> Result:
        if reason := refusal(job, self._limits):
            return Refused(reason)
        async with self._room.of(len(job.seeds)) as leave, self._turn():
            self._check_open()
            live = self._live
            if live is None:
                raise EngineError(f"{job.name}: the engine ended while the group waited")
            await self._or_end(live, live.wake())
            return tuple(await _all(self._one(live, job, seed, leave) for seed in job.seeds))

    def _turn(self) -> AbstractAsyncContextManager[None]:
        return nullcontext() if self._turns is None else self._turns.use()

    async def _sleep(self) -> None:
        """Nothing of the engine is left on the GPU afterwards."""
        live = self._live
        if live is not None:
            with suppress(EngineError):
                await self._or_end(live, live.sleep())

    async def _or_end(self, live: Live, change: Awaitable[None]) -> None:
        try:
            await change
        except EngineError:
            await self._end(live)
            raise

    async def _one(self, live: Live, job: Job, seed: int, leave: Callable[[], None]) -> Answer:
        try:
            answer = await live.answer(job, seed, self._ends)
        finally:
            leave()
        if self._forward is None:
            return answer
        return replace(answer, signals=await self._forward.of(job, answer))

    async def load(self, weights: Path, version: int) -> None:
        await self._to_its_end(self._load(weights, version))

    async def receive(self, offer: Offer, version: int, digest: str) -> None:
        await self._to_its_end(self._receive(offer, version, digest))

    async def _to_its_end(self, change: Coroutine[Any, Any, None]) -> None:
        # Even when the caller is cancelled: after half of it nobody knows what is loaded.
        load = asyncio.create_task(change)
        self._loads.add(load)
        load.add_done_callback(self._loads.discard)
        await asyncio.shield(load)

    async def _load(self, weights: Path, version: int) -> None:
        async with self._loading:
            self._check_open()
            folder = await asyncio.to_thread(self._folders.make, weights, version)
            old = self.version
            try:
                if self._forward is not None:
                    # Answers of an older version have told their weights long ago.
                    self._forward.keep({old})
                    await self._forward.put(weights, version)
                async with self._turn():
                    live = await self._take(folder, version)
            except Exception:
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
                raise
            finally:
                if self._forward is not None:
                    # An answer may have ended by the old weights, its signals being on their way.
                    self._forward.keep({old, self.version})
            log.info("vllm_weights", version=version, checksum=live.checksum[:16])

    async def _receive(self, offer: Offer, version: int, digest: str) -> None:
        async with self._loading, self._turn():
            self._check_open()
            live = self._live
            if live is None:
                raise Untaken("no engine runs that could take them")
            incoming = await Incoming.ask(
                offer, version, digest, ranks=self._ranks, misfit=self._folders.misfit
            )
            try:
                await self._or_end(live, live.receive(incoming, version))
            finally:
                await incoming.close()
            log.info("vllm_weights", version=version, checksum=live.checksum[:16], taken="sent")

    async def _take(self, folder: Path, version: int) -> Live:
        live = self._live
        if live is None:
            live = self._live = await self._started(folder, version)
            self._watch = asyncio.create_task(self._bury(live))
        else:
            await self._or_end(live, live.update(folder, version))
        return live

    async def _started(self, folder: Path, version: int) -> Live:
        what = Start(folder=folder, **self._start_with)
        loop = asyncio.get_running_loop()

        def observe(cache_use: float, preempted: int) -> None:
            limit = self._room.limit
            limit.observe(
                cache_use=cache_use, preempted=preempted, rows=self._room.rows, at_s=loop.time()
            )
            self._room.admit()

        if self._newest is not None:
            # Two engines at once may not fit.
            await self._newest.close()
        if self._reaper is None or self._reaper.poll() is not None:
            self._reaper = start_reaper([] if self._turns is None else [self._turns.descriptor])
        self._beginning = True
        # vLLM gives its processes ten minutes to be ready.
        try:
            started = await asyncio.to_thread(self._start, what, observe)
        except Exception as error:  # whatever vLLM's start may raise; its own log says more
            self._beginning = False
            raise EngineError(f"vLLM did not start: {type(error).__name__}: {error}") from error
        live = self._newest = Live(started, folder, version)
        self._beginning = False
        try:
            await live.begin()
        except EngineError:
            await live.close()
            raise
        return live

    async def _bury(self, live: Live) -> None:
        """Notice the death of the engine's processes, whether or not anybody waits for an answer."""
        while not live.dead:
            await asyncio.sleep(WATCH_S)
            if self._live is not live:
                return
        await self._end(live)

    async def _end(self, live: Live) -> None:
        if self._live is live:
            # Whoever notices first; once it is closed, it says of itself that it is dead.
            if live.dead:
                log.warning("vllm_died", version=live.version, rows=live.rows)
            self._live = None
            self._sampled_before += live.sampled
        await live.close()

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError("the engine was closed")

    async def close(self) -> None:
        self._closed = True
        if self._watch is not None:
            self._watch.cancel()
        loads = list(self._loads)
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)
        if self._newest is not None:
            await self._end(self._newest)
        if self._turns is not None:
            await self._turns.close()
        if self._reaper is not None:
            if self._beginning and self._reaper.stdin is not None:
                # A start cannot be called off: what it has begun is left to the reaper, and with it all
                # else below this process, so no sooner than when this process has ended.
                os.dup(self._reaper.stdin.fileno())
                self._reaper.stdin.close()
            else:
                await asyncio.to_thread(self._reaper.communicate, b"x")
            self._reaper = None
        await asyncio.to_thread(shutil.rmtree, self._home, ignore_errors=True)


async def _all(coroutines: Any) -> list[Any]:
    """All results in order; at the first failure the others are cancelled, and have ended on return."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
