"""A small stand-in for vLLM's `AsyncLLM` that does as it is told."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workers.rollout.vllm_start import Observe, Start, Started


class Broken(Exception):
    """As vLLM's `EngineDeadError`."""


@dataclass
class Piece:
    token_ids: list[int]
    logprobs: list[dict[int, Any]]
    finish_reason: str | None = None
    weight_versions: list[Any] | None = None


@dataclass
class Output:
    outputs: list[Piece]
    finished: bool


@dataclass
class Span:
    version: str
    start: int
    end: int


@dataclass
class Told:
    logprob: float


@dataclass
class StandIn:
    """Answers [5, 2] with a token each time that `steps` allows one."""

    steps: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    errored: bool = False
    refused: set[str] = field(default_factory=set)
    """Folders that cannot be loaded."""
    weights: str = "v0"
    label: str = "0"
    calls: list[str] = field(default_factory=list)
    salts: list[str] = field(default_factory=list)
    hanging: set[str] = field(default_factory=set)
    """Methods that never return, as when the engine's processes hang, or are dead before an answer came."""
    broken: set[str] = field(default_factory=set)
    """Methods that raise."""
    aborted: int = 0
    asleep: set[str] = field(default_factory=set)
    told: tuple[Any, ...] = ()
    """What came with the steps of a transfer."""
    arrived: dict[str, str] = field(default_factory=dict)
    """Fingerprints of the tensors that a transfer has brought."""

    async def generate(self, prompt: Any, _params: Any, _name: str) -> AsyncIterator[Output]:
        assert not self.asleep
        self.salts.append(prompt["cache_salt"])
        labels: list[str] = []
        try:
            for token in (5, 2):
                await self.steps.acquire()
                if self.errored:
                    raise Broken("gone")
                labels.append(self.label)
                piece = Piece([token], [{token: Told(-0.5)}])
                if token == 2:
                    piece.finish_reason = "stop"
                    piece.weight_versions = spans(labels)
                yield Output([piece], finished=token == 2)
        except GeneratorExit:
            self.aborted += 1
            raise

    async def pause_generation(self, *, mode: str, clear_cache: bool) -> None:
        await self._call("pause_generation", f"pause {mode}")

    async def resume_generation(self) -> None:
        await self._call("resume_generation", "resume")

    async def sleep(self, level: int, mode: str) -> None:
        await self._call("sleep", f"sleep {level} {mode}")
        self.asleep = {"weights", "kv_cache"}

    async def wake_up(self, tags: list[str] | None = None) -> None:
        await self._call("wake_up", f"wake {' '.join(tags or ['all'])}")
        self.asleep -= set(tags) if tags else self.asleep

    async def collective_rpc(
        self, method: str, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> list[Any]:
        if method != "take_weights":
            return await self._transfer(method, args or tuple((kwargs or {}).values()))
        name = Path(args[0]).name
        await self._call("collective_rpc", f"{method} {name}")
        if self.errored:
            raise Broken("gone")
        if name in self.refused:
            self.weights = "half"
            raise ValueError("a shape does not fit")
        self.weights = name
        return [None]

    async def _transfer(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        """A step of a transfer from the learner's memory."""
        self.told += args
        if method == "take_chunk":
            self.weights = "half"
        await self._call(method, method)
        if method == "finish_weight_update":
            self.weights = "sent"
        return [self.arrived]

    async def compute_weight_checksums(self) -> list[dict[str, str]]:
        return [{"all": self.weights}]

    async def update_weight_version(self, version: str) -> None:
        await self._call("update_weight_version", f"label {version}")
        self.label = version

    def shutdown(self, timeout: float) -> None:
        """From then on it says that it is dead, as vLLM does."""
        self.calls.append("shutdown")
        self.errored = True

    async def _call(self, method: str, told: str) -> None:
        self.calls.append(told)
        if method in self.hanging:
            await asyncio.Event().wait()
        if method in self.broken:
            raise RuntimeError("no memory")


def spans(labels: list[str]) -> list[Span]:
    found: list[Span] = []
    for at, label in enumerate(labels):
        if not found or found[-1].version != label:
            found.append(Span(label, at, at))
        found[-1].end = at + 1
    return found


def as_started(llm: StandIn) -> Started:
    return Started(llm, (Broken,), lambda parameters: parameters)


class Starts:
    """Each engine that is started is a stand-in, kept here."""

    def __init__(self) -> None:
        self.made: list[StandIn] = []
        self.next: Callable[[], None] = lambda: None
        """Called in each start, before there is an engine."""

    def __call__(self, what: Start, observe: Observe) -> Started:
        self.next()
        llm = StandIn(weights=what.folder.name)
        self.made.append(llm)
        return as_started(llm)
