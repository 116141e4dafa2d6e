"""One vLLM engine as long as it lives: answers, weight updates, death.

Weight versions are vLLM's own labels, stamped on each step's outputs, so an answer's spans are the engine's
word. An update pauses between two steps, keeps every answer and its keys and values, and goes on.
"""

import asyncio
import hashlib
import itertools
import json
import shutil
from collections.abc import Coroutine
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

from broker.telemetry import now_us
from workers.rollout.engine import Answer, BadWeights, EngineError, Job, Untaken
from workers.rollout.vllm_jobs import Row, parameters, prompt
from workers.rollout.vllm_receive import Incoming
from workers.rollout.vllm_start import Started

UPDATE_LIMIT_S = 300.0
CLOSE_LIMIT_S = 2.0
LOOK_S = 0.2


class Live:
    """Made around an engine that has just started from `folder`."""

    def __init__(
        self, started: Started, folder: Path, version: int, *, limit_s: float = UPDATE_LIMIT_S
    ) -> None:
        """limit_s: of an update; an engine that takes longer is to be closed."""
        self._llm = started.llm
        self._limit_s = limit_s
        self._breaks = started.breaks
        self._sampling = started.sampling
        self._folder = folder
        self._numbers = itertools.count()
        self._going = asyncio.Event()
        self._going.set()
        self._open: set[asyncio.Task[Answer | None]] = set()
        self._closing = False
        self._asleep = False
        self._waking = asyncio.Lock()
        self._ended: asyncio.Task[None] | None = None
        self.version = version
        self.checksum = ""
        """Of the weights that the engine holds, as it tells them; empty before it was asked."""
        self.rows = 0
        self.sampled = 0

    @property
    def dead(self) -> bool:
        return bool(self._llm.errored)

    async def begin(self) -> None:
        """Label the first weights. Raises EngineError."""
        await self._while_it_lives("its first weights", self._label())

    async def _label(self) -> None:
        await self._llm.update_weight_version(str(self.version))
        self.checksum = await self._checksum()

    async def _while_it_lives(self, what: str, body: Coroutine[Any, Any, None]) -> None:
        """Raises EngineError when the engine dies meanwhile: vLLM would let the call wait for ever.

        Whatever vLLM raises becomes an EngineError too: after half a change nobody knows what it holds.
        """
        task = asyncio.create_task(body)
        try:
            async with asyncio.timeout(self._limit_s):
                while not task.done():
                    await asyncio.wait({task}, timeout=LOOK_S)
                    if self._closing or (self.dead and not task.done()):
                        raise EngineError(f"vLLM ended while it took {what}")
                task.result()
        except (EngineError, BadWeights, Untaken):
            raise
        except Exception as error:
            raise EngineError(f"vLLM did not take {what}: {_told(error)}") from error
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def answer(self, job: Job, seed: int, end_tokens: frozenset[int]) -> Answer:
        """One answer. Raises EngineError."""
        self.rows += 1
        try:
            while True:
                await self._going.wait()
                if self._closing:
                    raise EngineError(f"{job.name}: the engine was closed")
                attempt = asyncio.create_task(self._try(job, seed, end_tokens))
                self._open.add(attempt)
                attempt.add_done_callback(self._open.discard)
                answer = await attempt
                if answer is not None:
                    return answer
        except asyncio.CancelledError:
            if not self._closing:
                raise
            raise EngineError(f"{job.name}: the engine was closed") from None
        except self._breaks as error:
            # Not from `error`: vLLM raises one and the same to all answers, its traceback growing each time.
            raise EngineError(f"{job.name}: vLLM broke: {_told(error)}") from None
        finally:
            self.rows -= 1

    async def _try(self, job: Job, seed: int, end_tokens: frozenset[int]) -> Answer | None:
        """None when other weights came before its first token.

        Its prompt's keys and values may then be a mixture, and the cache would serve them under the salt
        of the old version; so it begins again.
        """
        version = self.version
        row = Row(job, now_us())
        name = f"{job.name}-{next(self._numbers)}"
        params = self._sampling(parameters(job, seed, end_tokens))
        answer = None
        outputs = self._llm.generate(prompt(job, version), params, name)
        async with aclosing(outputs):
            async for output in outputs:
                if not row.token_ids and self.version != version:
                    return None
                (piece,) = output.outputs
                row.add(piece.token_ids, piece.logprobs)
                self.sampled += len(piece.token_ids)
                if output.finished:
                    # No return from here: leaving the generator early would abort what has ended.
                    answer = row.finished(piece.finish_reason, piece.weight_versions, now_us())
        if answer is None:
            raise EngineError(f"{job.name}: vLLM ended an answer without its last piece")
        return answer if answer.spans[0].version == version else None

    async def update(self, folder: Path, version: int) -> None:
        """Put the weights of another folder in force; on any failure the old ones stay or are put back.

        Raises BadWeights when the engine refuses them, EngineError when it is dead or does not answer:
        then it is to be closed, and stays paused until it is.
        """
        self._going.clear()
        try:
            await self._while_it_lives(f"version {version}", self._paused(folder, version))
        finally:
            self._going.set()

    async def _paused(self, folder: Path, version: int) -> None:
        await self._pause()
        try:
            await self._exchange(folder, version)
        except BadWeights:
            await self._resume()
            raise
        await self._resume()

    async def receive(self, incoming: Incoming, version: int) -> None:
        """As `update`, with weights that the learner sends.

        Raises Untaken when nothing has changed; EngineError as `update` does, and when a transfer broke.
        """
        self._going.clear()
        try:
            what = f"version {version} from the learner"
            await self._while_it_lives(what, self._received(incoming, version))
        finally:
            self._going.set()

    async def _received(self, incoming: Incoming, version: int) -> None:
        await self._pause()
        try:
            await incoming.into(self._llm)
        except Untaken:
            await self._resume()
            raise
        # The folder stays, of an older version: its checksum keeps it from being put back unnoticed.
        self.version, self.checksum = version, await self._checksum()
        await self._llm.update_weight_version(str(version))
        await self._resume()

    async def _pause(self) -> None:
        if self._asleep:
            # Room for the weights alone; the engine stays paused until the rest is there too.
            await self._llm.wake_up(["weights"])
        else:
            await self._llm.pause_generation(mode="keep", clear_cache=False)

    async def _resume(self) -> None:
        if self._asleep:
            await self._llm.wake_up(["kv_cache"])
            self._asleep = False
        else:
            await self._llm.resume_generation()

    async def sleep(self) -> None:
        """Leave the GPU: weights go to this machine's memory, keys and values are forgotten.

        Nothing may be under way. Raises EngineError: then it is to be closed.
        """
        # Waits for what vLLM itself has still to end.
        await self._while_it_lives("its sleep", self._llm.sleep(level=1, mode="wait"))
        self._asleep = True

    async def wake(self) -> None:
        """Come back with the weights it fell asleep with; nothing to do when awake. Raises EngineError."""
        async with self._waking:
            if self._asleep:
                await self._while_it_lives("its waking", self._wake())

    async def _wake(self) -> None:
        await self._llm.wake_up()
        if await self._checksum() != self.checksum:
            raise EngineError("vLLM woke with other weights than it fell asleep with")
        self._asleep = False

    async def _exchange(self, folder: Path, version: int) -> None:
        try:
            await self._reload(folder)
            checksum = await self._checksum()
        except self._breaks:
            raise
        except Exception as error:  # whatever a loader may raise in the engine's process
            await self._put_back(error)
            raise BadWeights(f"{folder}: refused by vLLM: {_told(error)}") from error
        await self._llm.update_weight_version(str(version))
        old, self._folder, self.version, self.checksum = self._folder, folder, version, checksum
        if old != folder:
            await asyncio.to_thread(shutil.rmtree, old, ignore_errors=True)

    async def _put_back(self, reason: Exception) -> None:
        """The weights in force, after others were refused half-way. Raises EngineError."""
        try:
            await self._reload(self._folder)
            same = await self._checksum() == self.checksum
        except Exception as error:  # as above
            raise EngineError(
                f"vLLM refused weights ({_told(reason)}), then version {self.version}: {_told(error)}"
            ) from error
        if not same:
            raise EngineError(
                f"vLLM refused weights ({_told(reason)}) and holds others than before"
            ) from reason

    async def _reload(self, folder: Path) -> None:
        await self._llm.collective_rpc("take_weights", args=(str(folder),))

    async def _checksum(self) -> str:
        told = await self._llm.compute_weight_checksums()
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

    async def close(self) -> None:
        """End its processes; every answer under way fails. Whoever calls, it is done once and to its end."""
        self._closing = True
        if self._ended is None:
            self._ended = asyncio.create_task(self._end())
        await asyncio.shield(self._ended)

    async def _end(self) -> None:
        # Once it is shut down, vLLM tells the answers under way nothing more.
        attempts = list(self._open)
        for attempt in attempts:
            attempt.cancel()
        if attempts:
            await asyncio.wait(attempts, timeout=CLOSE_LIMIT_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_LIMIT_S * 2):
                await asyncio.to_thread(self._llm.shutdown, CLOSE_LIMIT_S)
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)


def _told(error: BaseException) -> str:
    """Type and message, of the cause too: vLLM wraps what its processes raise."""
    cause = f" ({type(error.__cause__).__name__}: {error.__cause__})" if error.__cause__ else ""
    return f"{type(error).__name__}: {error}{cause}".strip()
