"""One vLLM engine's life, over a small stand-in for `AsyncLLM` that does as it is told."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.rollout_models import a_job, until
from workers.rollout.engine import BadWeights, EngineError
from workers.rollout.vllm_live import Live
from workers.rollout.vllm_start import Started

ENDS = frozenset({2})


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
    aborted: int = 0

    async def generate(self, prompt: Any, _params: Any, _name: str) -> AsyncIterator[Output]:
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
        self.calls.append(f"pause {mode}")

    async def resume_generation(self) -> None:
        self.calls.append("resume")

    async def collective_rpc(self, method: str, args: tuple[str]) -> None:
        name = Path(args[0]).name
        self.calls.append(f"{method} {name}")
        if self.errored:
            raise Broken("gone")
        if name in self.refused:
            self.weights = "half"
            raise ValueError("a shape does not fit")
        self.weights = name

    async def compute_weight_checksums(self) -> list[dict[str, str]]:
        return [{"all": self.weights}]

    async def update_weight_version(self, version: str) -> None:
        self.calls.append(f"label {version}")
        self.label = version

    def shutdown(self, timeout: float) -> None:
        self.calls.append("shutdown")


def spans(labels: list[str]) -> list[Span]:
    found: list[Span] = []
    for at, label in enumerate(labels):
        if not found or found[-1].version != label:
            found.append(Span(label, at, at))
        found[-1].end = at + 1
    return found


async def a_live(tmp_path: Path) -> tuple[Live, StandIn]:
    llm = StandIn()
    for name in ("v0", "v1", "v2"):
        (tmp_path / name).mkdir()
    live = Live(Started(llm, (Broken,), lambda parameters: parameters), tmp_path / "v0", 0)
    await live.begin()
    llm.calls.clear()
    return live, llm


async def test_an_update_pauses_reloads_labels_and_goes_on(tmp_path: Path):
    live, llm = await a_live(tmp_path)

    await live.update(tmp_path / "v1", 1)

    assert llm.calls == ["pause keep", "take_weights v1", "label 1", "resume"]
    assert live.version == 1
    assert not (tmp_path / "v0").exists(), "the weights that nobody needs any more"


async def test_an_answer_that_spans_an_update_is_kept_with_both_versions(tmp_path: Path):
    live, llm = await a_live(tmp_path)
    working = asyncio.create_task(live.answer(a_job(), 1, ENDS))
    llm.steps.release()
    await until(lambda: live.sampled == 1)

    await live.update(tmp_path / "v1", 1)
    llm.steps.release()

    answer = await working
    assert [(span.version, span.first, span.end) for span in answer.spans] == [(0, 0, 1), (1, 1, 2)]
    assert llm.aborted == 0


async def test_an_answer_not_begun_at_an_update_begins_again_under_the_new_salt(tmp_path: Path):
    live, llm = await a_live(tmp_path)
    working = asyncio.create_task(live.answer(a_job(), 1, ENDS))
    await until(lambda: llm.salts == ["v0"])

    await live.update(tmp_path / "v1", 1)
    for _ in range(3):
        llm.steps.release()

    answer = await working
    assert [span.version for span in answer.spans] == [1]
    assert llm.salts == ["v0", "v1"]
    assert live.rows == 0


async def test_weights_that_the_engine_refuses_leave_the_old_ones_in_force(tmp_path: Path):
    live, llm = await a_live(tmp_path)
    llm.refused.add("v1")

    with pytest.raises(BadWeights, match="a shape does not fit"):
        await live.update(tmp_path / "v1", 1)

    assert (live.version, llm.weights, llm.label) == (0, "v0", "0")
    assert llm.calls[-1] == "resume"
    await live.update(tmp_path / "v2", 2)
    assert (live.version, llm.weights) == (2, "v2")


async def test_an_engine_that_cannot_go_back_is_given_up(tmp_path: Path):
    live, llm = await a_live(tmp_path)
    llm.refused |= {"v0", "v1"}

    with pytest.raises(EngineError):
        await live.update(tmp_path / "v1", 1)

    assert live.version == 0


async def test_the_engines_death_is_told_to_answers_and_updates(tmp_path: Path):
    live, llm = await a_live(tmp_path)
    working = asyncio.create_task(live.answer(a_job(name="g7"), 1, ENDS))
    await until(lambda: llm.salts)

    llm.errored = True
    llm.steps.release()

    with pytest.raises(EngineError, match="g7: vLLM broke: Broken: gone"):
        await working
    with pytest.raises(EngineError, match="broke at an update"):
        await live.update(tmp_path / "v1", 1)
    assert live.dead
    assert live.rows == 0


async def test_closing_ends_every_answer_under_way(tmp_path: Path):
    live, llm = await a_live(tmp_path)
    working = [asyncio.create_task(live.answer(a_job(name="g7"), seed, ENDS)) for seed in range(3)]
    await until(lambda: len(llm.salts) == 3)

    async with asyncio.timeout(5):
        await live.close()
        outcomes = await asyncio.gather(*working, return_exceptions=True)

    assert [str(outcome) for outcome in outcomes] == ["g7: the engine was closed"] * 3
    assert "shutdown" in llm.calls


async def test_an_answer_that_is_cancelled_is_no_error_of_the_engine(tmp_path: Path):
    live, llm = await a_live(tmp_path)
    working = asyncio.create_task(live.answer(a_job(), 1, ENDS))
    await until(lambda: llm.salts)

    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working

    assert live.rows == 0
