"""Grader processes: a wall-clock limit for every answer, a memory limit, a hard kill, a replacement at once.

Two lanes. In the quick lane a process judges a group's answers in a row; an answer that takes noticeably
long, or kills the process, leaves the lane with the rest of its group, so that it delays nobody else. In the
other lane each answer is judged alone, in a fresh process, up to the full limit; a verifier with limits of
its own (programs in the sandbox) sends all its answers there, and gets the time it states. Only there is
fault decided:

- the answer's (0, with a reason): the process reached its memory limit or crashed, or the deadline passed
  while it was computing. A process that is kept from computing by a busy machine gets more time, up to
  STRETCH times the deadline;
- the machine's or the verifier's (no reward): the process was killed from outside, waited for something, or
  hardly got a processor, twice.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self, cast

from broker import frames
from broker.messages import Json
from workers.verifiers.calls import Call, Graded, death, not_the_answer, take
from workers.verifiers.classes import Answer, by_key
from workers.verifiers.nursery import Grader, Nursery
from workers.verifiers.protocol import Finding, judged, verifier_error
from workers.verifiers.together import together

BUILD_S = 60.0
"""Limit for importing and building a verifier of the user's own, and for judging its canaries."""
PATIENCE_S = 1.0
CROWDED_PATIENCE_S = 0.1
"""How long one answer may take in the quick lane; the second while others wait for it."""
BUSY_SHARE = 0.5
"""Of the limit, spent computing: then the answer was slow. Less: the machine was."""
STRETCH = 20
SLICE_S = 0.1
TRIES = 2
CALLS_PER_GRADER = 2_000
"""Replaced then, so that a leak stays small."""


class Hung(Exception):
    """No word from a grader within its limit."""

    def __init__(self, limit_s: float, used_s: float = 0.0) -> None:
        super().__init__(limit_s, used_s)
        self.limit_s = limit_s
        self.used_s = used_s
        """Processor time it used meanwhile."""


class Died(Exception):
    """The grader process is gone."""


class Pool:
    """Use as an async context manager; `grade` may be called from many tasks at once."""

    def __init__(self, *, size: int, deadline_s: float, memory_bytes: int) -> None:
        self._deadline_s = deadline_s
        self._memory_bytes = memory_bytes
        self._nursery = Nursery(memory_bytes)
        self._size = size
        self._quick = asyncio.Semaphore(size)
        self._alone = asyncio.Semaphore(size + 1)
        self._idle: list[Grader] = []
        self._waiting = 0

    async def __aenter__(self) -> Self:
        self._idle = [await self._nursery.spawn() for _ in range(self._size)]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for grader in self._idle:
            grader.writer.close()
        await self._nursery.close()

    def processes(self) -> list[int]:
        """Ids of the idle graders; for status and tests."""
        return [grader.pid for grader in self._idle]

    def nursery_pid(self) -> int:
        return self._nursery.pid

    async def grade(
        self,
        spec: Mapping[str, object],
        target: str | None,
        answers: Mapping[int, str],
        item: Json | None = None,
    ) -> Graded:
        """Judge a group's answers and sort them into classes. Returns a finding for each index."""
        graded = Graded()
        base: frames.Frame = {
            "spec": dict(spec),
            "target": target,
            "item": item or {},
            "seconds": self._deadline_s / 2,
        }
        todo = sorted(answers.items())
        call = Call(base | {"answers": todo, "quick": True}, graded)
        await self._quickly(call)
        if graded.broken:
            return graded
        missing = [pair for pair in todo if pair[0] not in graded.findings]
        await together(self._by_itself(base, graded, *pair) for pair in missing)
        if missing or not call.done:
            await self._classify(base, graded)
        return graded

    # --- lanes ------------------------------------------------------------------------------------

    async def _quickly(self, call: Call) -> None:
        """Run a call in the quick lane as far as it gets."""
        self._waiting += 1
        try:
            await self._quick.acquire()
        finally:
            self._waiting -= 1
        try:
            await self._with_idle(call)
        finally:
            self._quick.release()

    async def _with_idle(self, call: Call) -> None:
        grader = self._idle.pop() if self._idle else await self._nursery.spawn()
        kept = False
        try:
            await self._converse(grader, call, quick=True)
            grader.calls += 1
            kept = call.done and grader.calls < CALLS_PER_GRADER
        except (Hung, Died) as end:
            # Otherwise what is missing is judged alone.
            if isinstance(end, Hung) and call.stage == "build":
                call.graded.broken = f"not built within {BUILD_S:g} s, canaries included"
        finally:
            if kept:
                self._idle.append(grader)
            else:
                await self._nursery.end(grader)
                self._idle.append(await self._nursery.spawn())

    async def _by_itself(self, base: frames.Frame, graded: Graded, index: int, text: str) -> None:
        """Judge one answer alone, and decide whose fault it is if that fails."""
        started = time.monotonic()
        fault = verifier_error("not judged")
        for _ in range(TRIES):
            call = Call(base | {"answers": [(index, text)]}, graded)
            async with self._fresh() as grader:
                try:
                    await self._converse(grader, call, quick=False)
                    return
                except Hung as late:
                    busy = _was_busy(late.used_s, late.limit_s)
                    fault = (_slow if busy else _late)(call.stage, late)
                except Died:
                    busy = False
                    fault = death(await self._nursery.end(grader), call.stage, self._memory_bytes)
            if busy or fault.status == "ok":
                break
        graded.findings[index] = fault
        graded.latency_ms[index] = (time.monotonic() - started) * 1e3

    @asynccontextmanager
    async def _fresh(self) -> AsyncIterator[Grader]:
        async with self._alone:
            grader = await self._nursery.spawn()
            try:
                yield grader
            finally:
                await self._nursery.end(grader)

    async def _classify(self, base: frames.Frame, graded: Graded) -> None:
        """Classes of all answers that have a key; those that cannot be compared stay apart, flagged."""
        answers = [
            Answer(index, finding.extracted, finding.answer_key)
            for index, finding in sorted(graded.findings.items())
            if finding.extracted is not None and finding.answer_key is not None
        ]
        graded.classes = by_key(answers, resolved=False)
        if graded.classes.unresolved:
            keyed = [(answer.index, answer.extracted, answer.key) for answer in answers]
            await self._quickly(Call(base | {"classify": keyed}, graded))

    # --- conversation -----------------------------------------------------------------------------

    async def _converse(self, grader: Grader, call: Call, *, quick: bool) -> None:
        """Send a call and take in what comes back, until done. Raises Hung or Died."""
        ready = grader.ready.get(call.spec)
        try:
            grader.writer.write(frames.pack(call.frame | {"known": ready is not None}))
            async with asyncio.timeout(self._deadline_s):
                await grader.writer.drain()
            call.stage = "build"
            if ready is not None:
                take(ready, call)
            await self._listen(grader, call, quick)
        except TimeoutError as error:
            raise Hung(self._deadline_s) from error
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Died from error

    async def _listen(self, grader: Grader, call: Call, quick: bool) -> None:
        """Take in the frames of a call. Raises Hung, and what reading raises when the grader is gone."""
        grader.told_at_s = time.monotonic()
        # One task for all of them: they mostly come together.
        reading = asyncio.create_task(_take_all(grader, call))
        try:
            while not (await asyncio.wait({reading}, timeout=min(SLICE_S, self._deadline_s)))[0]:
                building = call.stage == "build"
                limit_s = BUILD_S if building else max(self._deadline_s, call.alone_s)
                waited = time.monotonic() - grader.told_at_s
                used = grader.cpu_s() - grader.told_cpu_s
                if self._expired(grader, waited, used, limit_s, quick and not building):
                    raise Hung(limit_s, used)
            reading.result()
        finally:
            reading.cancel()

    def _expired(
        self, grader: Grader, waited_s: float, used_s: float, limit_s: float, quick: bool
    ) -> bool:
        """In the quick lane patience ends early, and earlier while others wait; alone see above."""
        if quick:
            return waited_s > min(limit_s, CROWDED_PATIENCE_S if self._waiting else PATIENCE_S)
        if waited_s < limit_s:
            return False
        starved = grader.wants_processor() and not _was_busy(used_s, limit_s)
        return not starved or waited_s >= STRETCH * limit_s


async def _take_all(grader: Grader, call: Call) -> None:
    while not call.done:
        frame = await frames.receive(grader.reader)
        grader.told_at_s, grader.told_cpu_s = time.monotonic(), cast(float, frame["cpu_s"])
        take(frame, call)
        if frame.get("stays"):
            grader.ready[call.spec] = frame


def _was_busy(used_s: float, limit_s: float) -> bool:
    return used_s >= BUSY_SHARE * limit_s


def _slow(stage: str, late: Hung) -> Finding:
    reason = f"exceeded {late.limit_s:g} s ({late.used_s:.2f} s of processor time)"
    if stage == "answers":
        return judged(False, None, None, reason)
    return not_the_answer(stage, reason)


def _late(stage: str, late: Hung) -> Finding:
    detail = f"{stage}: {late.used_s:.2f} s of processor time within {late.limit_s:g} s"
    return Finding("timeout", None, detail=detail)
