"""The one thread from which everything is computed, so that the event loop stays alive meanwhile."""

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from broker.errors import TooLong
from broker.gpu_turn import LIMIT_S, GpuTurn
from broker.telemetry import Health
from learner.interrupt import Interrupted

Result = TypeVar("Result")

POLL_S = 0.5
TURN_POLL_S = 0.05
COMPUTE_LIMIT_S = 12 * 3600.0
"""No single computation (warm-up, a step, a checkpoint) takes longer unless it is stuck."""


class Workshop:
    """Runs functions one after the other in its thread; use as a context manager."""

    def __init__(
        self, *, threads: int, deterministic: bool, health: Health, stop: asyncio.Event,
        turn: GpuTurn | None = None,
    ) -> None:  # fmt: skip
        """turn: on the GPU, where engines compute on it too."""
        self._turn = turn
        self._health = health
        self._stop = stop
        self._executor = ThreadPoolExecutor(
            1, "learner", initializer=_prepare, initargs=(threads, deterministic)
        )
        self.interrupted = threading.Event()
        """Set when the process is asked to stop; long computations look at it and raise Interrupted."""

    def __enter__(self) -> "Workshop":
        return self

    def __exit__(self, *_: object) -> None:
        self.interrupted.set()
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def do_alone(self, what: str, function: Callable[[], Result]) -> Result:
        """As `do`, for what needs much of the GPU: while no engine is awake there.

        Raises Interrupted when the process is asked to stop before its turn comes.
        """
        if self._turn is None:
            return await self.do(what, function)
        await self._take(self._turn)
        try:
            return await self.do(what, lambda: _and_free(function))
        finally:
            self._turn.give()

    async def _take(self, turn: GpuTurn) -> None:
        waited = 0.0
        with self._health.waiting_for("the engines to leave the GPU", LIMIT_S):
            while not turn.take():
                if self._stop.is_set():
                    raise Interrupted
                if waited > LIMIT_S:
                    raise TooLong(f"the engines have not left the GPU for {LIMIT_S:.0f} s")
                self._health.beat()
                await asyncio.sleep(TURN_POLL_S)
                waited += TURN_POLL_S

    async def do(self, what: str, function: Callable[[], Result]) -> Result:
        """What `function` returns; `what` names the wait."""
        future = asyncio.get_running_loop().run_in_executor(self._executor, function)
        # Nobody asks for the outcome of what is still computed when its caller is cancelled.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        waited = 0.0
        with self._health.waiting_for(what, COMPUTE_LIMIT_S):
            while waited < COMPUTE_LIMIT_S:
                done, _ = await asyncio.wait({future}, timeout=POLL_S)
                self._health.beat()
                if done:
                    return future.result()
                if self._stop.is_set():
                    self.interrupted.set()
                waited += POLL_S
        raise TooLong(f"{what}: not done after {COMPUTE_LIMIT_S:.0f} s")


def _and_free(function: Callable[[], Result]) -> Result:
    """What torch keeps of freed memory would be missing to an engine that wakes."""
    try:
        return function()
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _prepare(threads: int, deterministic: bool) -> None:
    # Sums depend on how they are split among threads.
    torch.set_num_threads(threads)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic)
