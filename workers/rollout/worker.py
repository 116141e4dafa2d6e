"""The rollout role: requests in, answers out, on model weights new enough for each request.

Training answers and evaluation have a consumer and an engine each: neither waits for the other, and an
evaluation keeps its version while training moves on.
"""

import asyncio
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch

from broker.bus import Bus
from broker.errors import TooLong
from broker.gpu_turn import GpuTurn
from broker.serve import serve
from broker.settings import RunSettings
from broker.telemetry import Health, writer_id
from broker.topology import ROLLOUT_EVAL, ROLLOUT_TRAIN
from workers.rollout import metrics
from workers.rollout.answers import Group, Texts
from workers.rollout.cohorts import CohortWorker
from workers.rollout.engine import Engine, Receiver
from workers.rollout.ledger_view import LedgerView
from workers.rollout.service import Service
from workers.rollout.settings import RolloutSettings
from workers.rollout.torch_engine import TorchEngine
from workers.rollout.weights import Load, NewestWeights, PinnedWeights, from_learner, loader

TICK_S = 0.5
RESUME_WAIT_S = 60.0


def make_engine(
    settings: RolloutSettings, model_dir: Path, device: str, dtype: str, cache_dir: Path,
    transfer: str | None = None,
) -> Engine:  # fmt: skip
    """The engine that `[rollout] engine` names. Raises BadConfiguration where it is not installed."""
    if settings.engine == "vllm":
        torch.set_num_threads(settings.threads)
        from workers.rollout.vllm_engine import VllmEngine
        from workers.rollout.vllm_start import refuse_without_vllm

        refuse_without_vllm()
        return VllmEngine(
            model_dir,
            cache_dir=cache_dir,
            device=device,
            dtype=dtype,
            max_rows=settings.max_rows,
            threads=settings.threads,
            settings=settings.vllm,
            signals=settings.signals,
            turn=GpuTurn.of_engine(cache_dir.parent) if settings.vllm.share_gpu else None,
            transfer=transfer,
        )
    return TorchEngine(
        model_dir,
        device=device,
        dtype=dtype,
        max_rows=settings.max_rows,
        threads=settings.threads,
        signals=settings.signals,
    )


async def run(
    bus: Bus,
    *,
    run: RunSettings,
    settings: RolloutSettings,
    model_dir: Path,
    device: str,
    dtype: str,
    cache_dir: Path,
    health: Health,
    stop: asyncio.Event,
    transfer: str | None = None,
) -> None:
    """Answer requests until `stop` is set or the run has ended; model_dir needs no weights.

    transfer: how the newest weights may also come from the learner's memory; pinned ones never do.
    """
    ledger = LedgerView(bus)

    def make(own: RolloutSettings, transfer: str | None = None) -> Engine:
        return make_engine(own, model_dir, device, dtype, cache_dir, transfer)

    engine = await asyncio.to_thread(make, settings, transfer)
    # A second team of threads would slow the first one down for good (torch_engine.py).
    alone = settings if settings.engine == "vllm" else settings.model_copy(update={"threads": 1})
    wait_s = settings.weights_wait_s
    newest = NewestWeights(engine, ledger, _load_newest(bus, engine, cache_dir, wait_s, transfer))
    load_pinned = loader(bus, cache_dir / "eval", wait_s)
    pinned = PinnedWeights(partial(make, alone), ledger, load_pinned, wait_s)
    group = Group(
        Texts(model_dir), run_seed=run.seed, engine=engine.name, worker=writer_id("rollout")
    )
    service = Service(
        engine=engine,
        newest=newest,
        pinned=pinned,
        ledger=ledger,
        group=group,
        weights_wait_s=wait_s,
        health=health,
    )
    leaving = asyncio.Event()
    serving = partial(serve, bus, fail=group.failed, health=health, stop=leaving)
    if run.deterministic:
        training = CohortWorker(bus, service).run(leaving)
        # One item at a time: in company, the last bits would depend on who else was there.
        measuring = serving(ROLLOUT_EVAL, service.measure, slots=1)
    else:
        training = serving(ROLLOUT_TRAIN, service.train, slots=settings.slots)
        measuring = serving(ROLLOUT_EVAL, service.measure, slots=settings.slots)
    try:
        async with asyncio.TaskGroup() as background:
            tasks = [
                background.create_task(ledger.follow()),
                background.create_task(newest.keep()),
                background.create_task(_leave(leaving, stop, ledger)),
                background.create_task(_report(engine, pinned, health)),
            ]
            async with asyncio.TaskGroup() as stages:
                stages.create_task(training)
                stages.create_task(measuring)
            for task in tasks:
                task.cancel()
    finally:
        await asyncio.gather(engine.close(), pinned.close())


def _load_newest(
    bus: Bus, engine: Engine, cache_dir: Path, wait_s: float, transfer: str | None
) -> Load:
    stored = loader(bus, cache_dir / "train", wait_s)
    if transfer is not None and isinstance(engine, Receiver):
        return from_learner(bus, engine, stored)
    return stored


async def _leave(leaving: asyncio.Event, stop: asyncio.Event, ledger: LedgerView) -> None:
    """Sets `leaving` when the process is told to stop or the run has ended."""
    reasons = [asyncio.create_task(stop.wait()), asyncio.create_task(_end_of_run(ledger))]
    try:
        done, _ = await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
        for reason in done:
            reason.result()
        leaving.set()
    finally:
        for reason in reasons:
            reason.cancel()


async def _end_of_run(ledger: LedgerView) -> None:
    # A run that is being resumed looks ended until its dispatcher says that it goes on.
    with suppress(TooLong):
        await ledger.until(lambda: ledger.run_live, "the run's start", RESUME_WAIT_S)
    await ledger.until(lambda: ledger.run_ended, "the run's end", None)


async def _report(engine: Engine, pinned: PinnedWeights, health: Health) -> None:
    """Status and metrics of both engines, twice a second."""
    counted = dict.fromkeys(metrics.ENGINES, 0)
    loop = asyncio.get_running_loop()
    then = loop.time()
    while True:
        health.beat()
        now = loop.time()
        for name, one in zip(metrics.ENGINES, (engine, pinned.engine), strict=True):
            if one is None:
                continue
            fresh = one.sampled - counted[name]
            counted[name] += fresh
            metrics.tokens_total.labels(name).inc(fresh)
            metrics.rows.labels(name).set(one.rows)
            metrics.weights_version.labels(name).set(-1 if one.version is None else one.version)
            if name == "train":
                speed = round(fresh / max(now - then, 1e-9))
                health.note(version=one.version, rows=one.rows, tokens_per_s=speed)
        then = now
        await asyncio.sleep(TICK_S)
