"""Seconds until a learner that was killed is where it was, against the seconds that the lost steps took.

No checkpoint but the first: every step is lost. Ours includes loading model and checkpoint, reading the
log, and redoing each step with its digest; the peer is the first life, from its first plan to its last
commit, which also published the weights.
"""

import asyncio
import statistics
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

from broker import jetstream
from broker.arrays import logprob_array, token_array
from broker.bus import Bus
from broker.messages import Event, GroupAnnotated, Sampling, StepCommitted, StepPlanned, VersionSpan
from broker.settings import NatsSettings, RunSettings
from broker.telemetry import Health
from broker.topology import Log, kind_subjects
from learner import worker
from learner.settings import LearnerSettings, ModelSettings, TinyModel, WarmupSettings
from learner.tiny import write_model_folder
from tests.bench.result import Result
from tests.bench.servers import nats
from tests.builders import a_generation, a_request, an_annotated, an_annotation
from tests.learner_lives import started

STEPS, GROUPS, SIZE, TOKENS = 20, 16, 8, 24
ROUNDS = 3
LIMIT_S = 300.0
TINY = TinyModel(characters="0123456789+-*/=<>?:;,.()abcdefghijklmnopqrstuvwxyz ")
VOCABULARY = len(TINY.characters)


def measure() -> list[Result]:
    found = []
    with nats(NatsSettings()) as url, tempfile.TemporaryDirectory(prefix="sluice-bench-") as at:
        write_model_folder(TINY, Path(at) / "model")
        for number in range(ROUNDS):
            found.append(asyncio.run(once(url, Path(at), f"redo{number}")))
    recovered_s, lost_s = (statistics.median(column) for column in zip(*found, strict=True))
    return [
        Result(
            "redo", f"back where it was after {STEPS} lost steps of {GROUPS * SIZE} answers", "s",
            recovered_s, lost_s, rounds=ROUNDS, more_is_better=False,
        )
    ]  # fmt: skip


async def once(url: str, folder: Path, run_id: str) -> tuple[float, float]:
    """Seconds to recover, and seconds that the steps had taken."""
    settings = NatsSettings(url=url)
    bus = await jetstream.connect(settings, run_id)
    try:
        await bus.ensure_logs(settings)
        await bus.publish(started())
        for window in range(1, STEPS + 1):
            await bus.publish_batch(a_window(window))
        first = asyncio.create_task(live(bus, folder, run_id))
        await seen(bus, StepCommitted, STEPS, first)
        await kill(first)
        begun = time.time()
        second = asyncio.create_task(live(bus, folder, run_id))
        await bus.publish_batch(a_window(STEPS + 1))
        back = await seen(bus, StepPlanned, STEPS + 1, second)
        await seen(bus, StepCommitted, STEPS + 1, second)
        await kill(second)
        planned = await seen(bus, StepPlanned, 1, None)
        committed = await seen(bus, StepCommitted, STEPS, None)
        return back.at_us / 1e6 - begun, (committed.at_us - planned.at_us) / 1e6
    finally:
        await bus.delete_run()
        await bus.close()


async def live(bus: Bus, folder: Path, run_id: str) -> None:
    await worker.run(
        bus,
        run=RunSettings(
            id=run_id,
            steps=STEPS + 10,
            groups_per_step=GROUPS,
            group_size=SIZE,
            max_staleness=STEPS + 10,
        ),
        model=ModelSettings(tiny=TINY),
        model_dir=folder / "model",
        settings=LearnerSettings(
            learning_rate=1e-4,
            checkpoint_every=10 * STEPS,
            identity_band=100.0,  # no engine sampled these answers
        ),
        warmup=WarmupSettings(),
        warmup_examples=lambda: iter(()),
        run_dir=folder / run_id,
        health=Health("learner"),
        stop=asyncio.Event(),
    )


async def kill(life: asyncio.Task[None]) -> None:
    life.cancel()
    with suppress(asyncio.CancelledError):
        await life


async def seen(
    bus: Bus, kind: type[Event], step: int, life: asyncio.Task[None] | None
) -> StepPlanned | StepCommitted:
    """The event of that kind and step, once it is there; what ends the life meanwhile is raised."""
    cursor = await bus.cursor(Log.LEDGER, 0, [kind_subjects(bus.run, kind.KIND)])
    try:
        async with asyncio.timeout(LIMIT_S):
            while True:
                for stored in await cursor.read(100, 0.2):
                    event = stored.event()
                    if isinstance(event, StepPlanned | StepCommitted) and event.step == step:
                        return event
                if life is not None and life.done():
                    life.result()
                    raise RuntimeError(f"the learner left before {kind.KIND} {step}")
    finally:
        await cursor.close()


def a_window(window: int) -> list[GroupAnnotated]:
    """Groups whose answers differ, so that every step trains."""
    found = []
    for index in range(GROUPS):
        number = (window - 1) * GROUPS + index + 1
        rng = np.random.default_rng(number)
        request = a_request(
            f"{number:08d}-0-0", size=SIZE,
            prompt_ids=token_array(rng.integers(3, VOCABULARY, 12)),
            sampling=Sampling(temperature=1.0, max_tokens=TOKENS),
        )  # fmt: skip
        generations = tuple(
            a_generation(
                i,
                token_ids=token_array(rng.integers(3, VOCABULARY, TOKENS)),
                logprobs=logprob_array(rng.normal(-4.0, 0.1, TOKENS)),
                spans=(VersionSpan(version=0, first=0, end=TOKENS),),
            )
            for i in range(SIZE)
        )
        found.append(
            an_annotated(
                request,
                generations=generations,
                annotations=tuple(an_annotation(i, advantage=(-1.0) ** i) for i in range(SIZE)),
                window=window, window_size=GROUPS, window_index=index,
            )
        )  # fmt: skip
    return found
