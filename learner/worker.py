"""Entry point of the learner: prepare the model, recover, follow the policy's windows to the end."""

import asyncio
import hashlib
import importlib.metadata
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog
import torch

from broker.bus import Bus
from broker.gpu_turn import GpuTurn
from broker.settings import RunSettings
from broker.telemetry import Health, writer_id
from learner.fold import read_ledger
from learner.follow import Follower
from learner.interrupt import Interrupted
from learner.model import load_model
from learner.publish import Pen
from learner.redo import recover
from learner.settings import LearnerSettings, ModelSettings, WarmupSettings
from learner.steps import Environment, Steps
from learner.supervise import warm_up
from learner.trainer import Trainer
from learner.vllm_sender import offering
from learner.warmup import WarmupExample, check_examples
from learner.watch import RunWatch
from learner.workshop import Workshop

log = structlog.get_logger()

PROGRESS_S = 2.0
"""Between two log lines about the warm-up."""

Examples = Callable[[], Iterator[WarmupExample]]


async def run(
    bus: Bus,
    *,
    run: RunSettings,
    model: ModelSettings,
    model_dir: Path,
    settings: LearnerSettings,
    warmup: WarmupSettings,
    warmup_examples: Examples,
    run_dir: Path,
    health: Health,
    stop: asyncio.Event,
    turn: GpuTurn | None = None,
) -> None:
    """Train the run's steps. Returns when the run has ended or `stop` is set; Replaced when fenced.

    turn: on the GPU, where the run's engines compute on it too.
    model_dir: Hugging Face folder. run_dir: where checkpoints and weight files go.
    warmup_examples: called only when the run begins and has a warm-up.
    """
    with Workshop(
        threads=settings.threads,
        deterministic=run.deterministic,
        health=health,
        stop=stop,
        turn=turn,
    ) as workshop:
        steps = await prepare(
            bus, workshop, run=run, model=model, model_dir=model_dir, settings=settings,
            warmup=warmup, run_dir=run_dir,
        )  # fmt: skip

        def begin() -> None:
            if warmup.steps:
                _warm_up(steps, warmup, warmup_examples, seed=run.seed, health=health)

        try:
            async with offering(bus, settings.transfer, steps.trainer.dtype) as steps.offers:
                await recover(steps, begin)
                watch = RunWatch(bus, health=health, stop=stop)
                follower = Follower(
                    steps, run=run, watch=watch, health=health, vocabulary=steps.trainer.vocabulary
                )
                await follower.follow()
        except Interrupted:
            # Nothing to hand back: a planned step is redone, an unplanned one was never begun.
            log.info("stopped in the middle of a computation", step=steps.step)


async def prepare(
    bus: Bus,
    workshop: Workshop,
    *,
    run: RunSettings,
    model: ModelSettings,
    model_dir: Path,
    settings: LearnerSettings,
    warmup: WarmupSettings,
    run_dir: Path,
) -> Steps:
    """The model as it was before anything was trained, and what LEDGER tells."""
    trainer = await workshop.do(
        "model",
        lambda: make_trainer(
            model, model_dir, settings, seed=run.seed, interrupted=workshop.interrupted
        ),
    )
    ledger = await read_ledger(bus)
    return Steps(
        bus,
        trainer=trainer,
        pen=Pen(bus, writer_id("learner"), ledger.sequences),
        ledger=ledger,
        workshop=workshop,
        settings=settings,
        environment=_environment(run, model, settings, warmup),
        run_dir=run_dir,
        steps=run.steps,
    )


def make_trainer(
    model: ModelSettings,
    model_dir: Path,
    settings: LearnerSettings,
    *,
    seed: int,
    interrupted: threading.Event,
) -> Trainer:
    """The model of the folder with a fresh optimizer."""
    loaded = load_model(model_dir, device=model.device, seed=seed)
    return Trainer(loaded, settings, dtype=getattr(torch, model.dtype), interrupted=interrupted)


def _warm_up(
    steps: Steps, warmup: WarmupSettings, examples: Examples, *, seed: int, health: Health
) -> None:
    trainer = steps.trainer
    found = list(examples())
    check_examples(found, vocabulary=trainer.vocabulary)
    last = time.monotonic()

    def progress(step: int, loss: float) -> None:
        nonlocal last
        health.note(warmup_step=step, warmup_steps=warmup.steps, warmup_loss=round(loss, 4))
        if time.monotonic() - last > PROGRESS_S or step == warmup.steps:
            last = time.monotonic()
            log.info("warm-up", step=step, steps=warmup.steps, loss=round(loss, 4))

    warm_up(
        trainer.model,
        found,
        warmup,
        micro_batch_tokens=steps.settings.micro_batch_tokens,
        seed=seed,
        dtype=trainer.dtype,
        progress=progress,
    )


def _environment(
    run: RunSettings, model: ModelSettings, settings: LearnerSettings, warmup: WarmupSettings
) -> Environment:
    """What decides how a step comes out, beside its groups."""
    tree = {
        "run": run.model_dump(mode="json", include={"seed", "deterministic"}),
        "model": model.model_dump(mode="json"),
        "learner": settings.model_dump(
            mode="json",
            exclude={
                "checkpoint_every", "keep_checkpoints", "on_mismatch", "weights", "transfer",
                "identity_band",
            },
        ),
        "warmup": warmup.model_dump(mode="json"),
    }  # fmt: skip
    return Environment(
        config_sha256=hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest(),
        threads=settings.threads,
        libraries={
            name: importlib.metadata.version(name)
            for name in ("torch", "transformers", "numpy", "safetensors")
        },
    )
