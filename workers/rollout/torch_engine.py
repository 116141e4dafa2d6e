"""The engine over torch: the decoder in a thread of its own, spoken to between two steps."""

import asyncio
import queue
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from pathlib import Path

import torch

from workers.rollout.decoder import Decoder, Ticket
from workers.rollout.engine import EngineError, Job, Refused, Result
from workers.rollout.model import build_model, end_tokens
from workers.rollout.packed import Weights, install, pack_linears, stage

JOIN_LIMIT_S = 2.0


class TorchEngine:
    """Refuses jobs before the first load; decodes in float32 or bfloat16 on one device."""

    name = "torch"

    def __init__(
        self,
        model_dir: Path,
        *,
        device: str,
        dtype: str,
        max_rows: int,
        threads: int,
        signals: Collection[str] = (),
    ) -> None:
        """dtype: a torch type by name. Builds the model, which may take seconds.

        signals: what to record of each answer beside its tokens, by name (see signals.py).
        threads: of decoding; the calling thread computes on one core from here on.
        """
        _compute_on(1)
        at, kind = torch.device(device), getattr(torch, dtype)
        model = build_model(model_dir, device=at, dtype=kind)
        pack_linears(model)
        self._decoder = Decoder(model, end_tokens(model_dir), max_rows=max_rows, signals=signals)
        self._threads = threads
        self._closed = False
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="torch-engine", daemon=True)
        self._thread.start()

    @property
    def version(self) -> int | None:
        return self._decoder.version

    @property
    def rows(self) -> int:
        return self._decoder.rows

    @property
    def sampled(self) -> int:
        """Tokens since the start."""
        return self._decoder.sampled

    async def generate(self, jobs: Sequence[Job]) -> list[Result]:
        if self.version is None:
            raise EngineError("no model weights are loaded yet")
        self._check_open()
        tickets = [Ticket(job) for job in jobs]
        for ticket in tickets:
            if reason := self._decoder.limits.refusal(ticket.job):
                ticket.future.set_result(Refused(reason))
        open_tickets = [ticket for ticket in tickets if not ticket.future.done()]
        self._commands.put(lambda: self._submit(open_tickets))
        try:
            return [await asyncio.wrap_future(ticket.future) for ticket in tickets]
        finally:
            self._commands.put(lambda: self._withdraw(open_tickets))

    async def load(self, weights: Path, version: int) -> None:
        # Read while decoding goes on; the swap itself is a matter of pointers.
        staged = await asyncio.to_thread(_stage_alone, self._decoder.model, weights)
        self._check_open()
        swapped: Future[None] = Future()
        self._commands.put(lambda: self._swap(staged, version, swapped))
        await asyncio.wrap_future(swapped)

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError("the engine was closed")

    async def close(self) -> None:
        # Calls come from one event loop, so nothing is asked of the thread after the None.
        self._closed = True
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join, JOIN_LIMIT_S)

    # --- in the engine's thread ---

    def _work(self) -> None:
        _compute_on(self._threads)
        with torch.inference_mode():
            while self._obey():
                try:
                    for ticket, result in self._decoder.advance():
                        ticket.future.set_result(result)
                except Exception as error:  # this thread's boundary: every caller gets it
                    self._break_off(f"{type(error).__name__}: {error}")
            self._break_off("the engine was closed")

    def _obey(self) -> bool:
        """Do what was asked since the last step; with nothing to decode, wait to be asked. False: closed."""
        while True:
            try:
                command = self._commands.get(block=not self._decoder.busy)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()

    def _submit(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            # From here on a caller cannot cancel the future, only withdraw the job.
            if ticket.future.set_running_or_notify_cancel():
                self._decoder.submit(ticket)

    def _withdraw(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            if not ticket.future.done():
                self._decoder.withdraw(ticket)

    def _swap(self, staged: Weights, version: int, swapped: "Future[None]") -> None:
        if swapped.set_running_or_notify_cancel():
            install(self._decoder.model, staged)
            self._decoder.set_version(version)
            swapped.set_result(None)

    def _break_off(self, reason: str) -> None:
        for ticket in self._decoder.withdraw_all():
            ticket.future.set_exception(EngineError(f"{ticket.job.name}: {reason}"))


def _compute_on(cores: int) -> None:
    """In the calling thread. Only one of a process should have several: teams of threads that are larger than
    the machine are put to sleep between two products by GNU's library, which doubles a step (ADR 11)."""
    torch.get_num_threads()  # or another thread's next number would be this one's
    torch.set_num_threads(cores)


def _stage_alone(model: torch.nn.Module, weights: Path) -> Weights:
    _compute_on(1)
    return stage(model, weights)
