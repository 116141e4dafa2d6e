"""Seconds to TRL's final held-out accuracy on the demo's tasks: same samples, same warm start, 3 seeds.

Both sides begin with the weights after the demo's warm-up and take the demo's steps, 128 answers each, with
its learning rates; TRL sees the prompts in the order and mix of the demo's dispatcher. The weights that a
side has had at a time (TRL's last, ours every few steps) are judged afterwards, by the same greedy answers
to the same held-out items, so that judging costs neither of them time. Time runs from the first request.
"""

import asyncio
import itertools
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from tokenizers import Tokenizer

from broker.messages import Sample, Sampling
from learner.export import export_weights
from learner.model import load_model, weights_bytes
from learner.supervise import warm_up
from ops import roles, settings, toml
from ops.paths import RunPaths
from ops.settings import Configuration
from tests.bench._sides import ROOT, Trl, committed, run
from tests.bench._trl_side import Asked
from tests.bench.result import Result
from workers.dispatcher.mixture import after_draw, next_domain
from workers.dispatcher.rendering import Renderer
from workers.dispatcher.sources import Source
from workers.rollout.engine import Job, Refused
from workers.rollout.torch_engine import TorchEngine
from workers.verifiers.exact import Exact

DEMO = ROOT / "ops" / "config" / "demo.toml"
SEEDS = (1, 2, 3)
JUDGE_EVERY = 14
"""Steps of ours between two checkpoints that are judged."""


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    seeds: tuple[int, ...]
    steps: int | None
    """None: the demo's."""
    warmup_steps: int | None
    judge_every: int


FULL = Size(SEEDS, None, None, JUDGE_EVERY)
SHORT = Size(SEEDS[:1], 8, 20, 4)


class Judge:
    """Held-out accuracy of a file of weights: the share of right greedy answers."""

    def __init__(self, folder: Path, sources: Sequence[Source], renderer: Renderer, tokens: int):
        samples = [sample for source in sources for sample in source.evaluation()]
        self._samples: list[Sample] = samples
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._jobs = [
            Job(
                str(place),
                np.array(renderer.render(sample.prompt).ids, np.int32),
                (0,),
                Sampling(temperature=0.0, max_tokens=tokens),
            )
            for place, sample in enumerate(samples)
        ]
        self._folder = folder

    def accuracy(self, weights: Path) -> float:
        return asyncio.run(self._accuracy(weights))

    async def _accuracy(self, weights: Path) -> float:
        engine = TorchEngine(self._folder, device="cpu", dtype="float32", max_rows=256, threads=2)
        try:
            await engine.load(weights, 0)
            results = await engine.generate(self._jobs)
        finally:
            await engine.close()
        scores = []
        for sample, result in zip(self._samples, results, strict=True):
            if isinstance(result, Refused):
                raise RuntimeError(f"{sample.key}: {result}")
            text = self._tokenizer.decode(result[0].token_ids.tolist(), skip_special_tokens=True)
            scores.append(Exact().grade(text, sample.target, {}).score or 0.0)
        return statistics.fmean(scores)


def configured(size: Size, at: Path) -> Configuration:
    """The demo, from a model folder with weights and without a warm-up of its own."""
    overrides = [f"learner.checkpoint_every={size.judge_every}", "learner.keep_checkpoints=1000"]
    overrides += ["evaluation.every=1_000_000"]
    if size.steps is not None:
        overrides.append(f"run.steps={size.steps}")
    if size.warmup_steps is not None:
        overrides.append(f"warmup.steps={size.warmup_steps}")
    demo = settings.load(DEMO, tuple(overrides))
    warm_start(demo, at)
    model = demo.model.model_copy(update={"path": at / "model", "tiny": None})
    warmup = demo.warmup.model_copy(update={"steps": 0})
    return demo.model_copy(update={"model": model, "warmup": warmup})


def warm_start(demo: Configuration, at: Path) -> None:
    """The folder `model`: weights after the demo's warm-up."""
    torch.set_num_threads(2)
    bare = roles.prepare_model(demo, RunPaths(at / "bare"))
    model = load_model(bare, device="cpu", seed=demo.run.seed)
    examples = list(roles.warmup_examples(demo, bare))
    warm_up(
        model, examples, demo.warmup, micro_batch_tokens=demo.learner.micro_batch_tokens,
        seed=demo.run.seed, dtype=torch.float32, progress=lambda step, loss: None,
    )  # fmt: skip
    export_weights(weights_bytes(model), bare, at / "model")


def prompts(c: Configuration, sources: Sequence[Source]) -> Iterator[Sample]:
    """Training samples in the dispatcher's order."""
    by_domain = {source.domain: source for source in sources}
    total = sum(source.share for source in c.source)
    shares = {source.domain: source.share / total for source in c.source}
    owed, drawn = dict.fromkeys(shares, 0.0), dict.fromkeys(shares, 0)
    while True:
        domain = next_domain(shares, owed)
        owed = after_draw(shares, owed, domain)
        yield by_domain[domain].sample(drawn[domain])[0]
        drawn[domain] += 1


def peer(c: Configuration, seed: int, judge: Judge, rows: Path, at: Path) -> tuple[float, float]:
    """TRL's seconds and its final accuracy."""
    weights = at / f"trl-{seed}.safetensors"
    asked = Asked(
        folder=str(at / "model"), rows=str(rows), reward="exact",
        answers=c.run.groups_per_step * c.run.group_size, group_size=c.run.group_size,
        max_tokens=c.sampling.max_tokens, learning_rate=c.learner.learning_rate,
        schedule=c.learner.schedule, steps=c.run.steps, seed=seed, save=str(weights),
    )  # fmt: skip
    with Trl(asked, at) as side:
        seconds, _ = side.steps(c.run.steps)
        side.saved()
    return seconds, judge.accuracy(weights)


def ours(
    c: Configuration, seed: int, judge: Judge, wanted: float, at: Path
) -> tuple[float, float, float]:
    """Seconds to the wanted accuracy (infinite if it is not reached), to the last step, the last accuracy."""
    config = at / f"ours-{seed}.toml"
    tree = c.model_dump(mode="json", exclude_none=True)
    tree["run"] |= {"seed": seed, "id": ""}
    config.write_text(toml.dumps(tree))
    run_id = f"ours-{seed}"
    run(config, run_id, at / "runs")
    times = {step: seconds for step, seconds, _ in committed(run_id, at / "runs")}
    reached, accuracy = float("inf"), 0.0
    for folder in sorted((at / "runs" / run_id / "checkpoints").glob("step-*")):
        step = int(folder.name.split("-")[1])
        accuracy = judge.accuracy(folder / "model.safetensors")
        tell(f"ours, step {step}, {times.get(step, 0.0):.1f} s: {accuracy:.3f}")
        if step and accuracy >= wanted:
            reached = min(reached, times[step])
    return reached, max(times.values()), accuracy


def tell(line: str) -> None:
    print(f"  {line}", file=sys.stderr, flush=True)


def measure(*, short: bool = False) -> list[Result]:
    size = SHORT if short else FULL
    with TemporaryDirectory(prefix="sluice-bench-") as scratch:
        at = Path(scratch)
        (at / "runs").mkdir()
        c = configured(size, at)
        found = [one_seed(c, seed, at) for seed in size.seeds]
    columns = [statistics.median(column) for column in zip(*found, strict=True)]
    trl_s, trl_accuracy, reached_s, last_s, accuracy = columns
    return [
        Result(
            "reward", "time to TRL's final held-out accuracy", "s", reached_s, trl_s, limit=trl_s,
            rounds=len(found), more_is_better=False,
        ),
        Result(
            "reward", "time for the same samples", "s", last_s, trl_s, rounds=len(found),
            more_is_better=False,
        ),
        Result(
            "reward", "final held-out accuracy", "share", accuracy, trl_accuracy, rounds=len(found)
        ),
    ]  # fmt: skip


def one_seed(c: Configuration, seed: int, at: Path) -> tuple[float, ...]:
    """TRL's seconds and accuracy; ours to reach it, to the last step, and the last accuracy."""
    run_settings = c.run.model_copy(update={"seed": seed})
    c = c.model_copy(update={"run": run_settings})
    renderer, sources = roles.load_sources(c, at / "model")
    judge = Judge(at / "model", sources, renderer, c.sampling.max_tokens)
    rows = at / f"rows-{seed}.jsonl"
    drawn = itertools.islice(prompts(c, sources), c.run.steps * c.run.groups_per_step)
    rows.write_text(
        "".join(json.dumps({"prompt": s.prompt, "target": s.target}) + "\n" for s in drawn)
    )
    trl_s, trl_accuracy = peer(c, seed, judge, rows, at)
    tell(f"seed {seed}: TRL {trl_accuracy:.3f} after {trl_s:.0f} s")
    reached_s, last_s, accuracy = ours(c, seed, judge, trl_accuracy, at)
    tell(f"seed {seed}: ours {accuracy:.3f} after {last_s:.0f} s, TRL's after {reached_s:.0f} s")
    return trl_s, trl_accuracy, reached_s, last_s, accuracy
