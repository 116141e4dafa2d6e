"""The learner's state and what it does with it: compute a planned step, commit it, publish, checkpoint.

Order of what others see: StepPlanned, weight object, StepCommitted, WeightsPublished, checkpoint. A
restart completes whatever is missing of it (see redo). The gradients of a step may be begun before its plan
is written, while the step before it is published: they change nothing that outlives the process.
"""

import asyncio
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from broker import weights
from broker.bus import Bus
from broker.messages import (
    CheckpointWritten,
    GroupAnnotated,
    StepCommitted,
    StepPlanned,
    WeightsPublished,
)
from broker.telemetry import now_us
from learner import checkpoint as checkpoints
from learner import gauges, reference
from learner.batch import Prepared, rows_of
from learner.computed import Computed, Started
from learner.fold import Ledger
from learner.metrics import Metrics, group_metrics
from learner.model import digest_of
from learner.offers import Offers
from learner.publish import Pen
from learner.schedule import learning_rate
from learner.settings import LearnerSettings
from learner.trainer import Trainer
from learner.windows import dropped_by_skip
from learner.workshop import Workshop

log = structlog.get_logger()

NOTHING_LEFT = "nothing_left"
INCIDENTS = (NOTHING_LEFT, "nonfinite")
"""Reasons to skip a step that somebody should look into."""


@dataclass(frozen=True)
class Environment:
    """What a checkpoint says about how it was made."""

    config_sha256: str
    threads: int
    libraries: dict[str, str]


class Steps:
    """Where the learner stands, and its moves."""

    def __init__(
        self, bus: Bus, *, trainer: Trainer, pen: Pen, ledger: Ledger, workshop: Workshop,
        settings: LearnerSettings, environment: Environment, run_dir: Path, steps: int,
    ) -> None:  # fmt: skip
        self.bus = bus
        self.trainer = trainer
        self.pen = pen
        self.ledger = ledger
        self.workshop = workshop
        self.settings = settings
        self.environment = environment
        self.run_dir = run_dir
        self.offers: Offers | None = None
        """Where engines can have the newest weights from this process itself."""
        self.steps = steps
        """Of the whole run."""
        self.step = 0
        self.version = 0
        self.cursor = 0
        self.digest = ""
        self.checkpointed = -1
        """Step of the newest checkpoint."""

    @property
    def checkpoint_folder(self) -> Path:
        return self.run_dir / "checkpoints"

    @property
    def weights_folder(self) -> Path:
        return self.run_dir / "weights"

    async def start(
        self, plan: StepPlanned, groups: Sequence[GroupAnnotated], ready: Prepared | None = None
    ) -> Started:
        """The gradients of a step; another start gives them up.

        ready: rows of the groups made earlier.
        """
        return await self.workshop.do_alone(
            f"gradients of step {plan.step}", lambda: self._start(plan, groups, ready)
        )

    def _start(
        self, plan: StepPlanned, groups: Sequence[GroupAnnotated], ready: Prepared | None
    ) -> Started:
        began = time.monotonic()
        rows = rows_of(groups, version=plan.version, ready=ready)
        facts = group_metrics(plan.groups, groups, rows)
        begun = self.trainer.begin(rows)
        return Started(plan, begun, facts, time.monotonic() - began)

    async def compute(
        self, plan: StepPlanned, groups: Sequence[GroupAnnotated], ready: Prepared | None = None
    ) -> Computed:
        """Take the step in memory. The model has changed afterwards unless it was skipped."""
        return await self.workshop.do_alone(
            f"step {plan.step}", lambda: self._finish(plan, self._start(plan, groups, ready))
        )

    async def finish(self, plan: StepPlanned, started: Started) -> Computed:
        """As `compute`, of a step whose gradients are there."""
        return await self.workshop.do_alone(
            f"step {plan.step}", lambda: self._finish(plan, started)
        )

    def _finish(self, plan: StepPlanned, started: Started) -> Computed:
        began = time.monotonic()
        if not plan.groups:
            return Computed(NOTHING_LEFT, b"", started.facts)
        rate = self._learning_rate(plan.step)
        taken = self.trainer.finish(started.begun, rate=rate)
        seconds = started.seconds + time.monotonic() - began
        told: Metrics = {
            "learning_rate": rate,
            "seconds_train": seconds,
            "tokens_per_s": (started.facts["tokens"] or 0) / max(seconds, 1e-9),
        }
        data = b"" if taken.skipped else self.trainer.weights()
        return Computed(taken.skipped, data, started.facts | taken.metrics | told)

    async def digest_after(self, done: Computed) -> str:
        """Of the model weights after a step: they stay those in force when it is skipped."""
        return self.digest if done.skipped else await asyncio.to_thread(digest_of, done.data)

    def _learning_rate(self, step: int) -> float:
        """As committed where the step is taken again: a resumed run may have another length."""
        committed = self.ledger.committed.get(step)
        rate = committed.metrics.get("learning_rate") if committed is not None else None
        return learning_rate(self.settings, (step - 1) / self.steps) if rate is None else rate

    def moved(self, plan: StepPlanned, *, version: int, digest: str) -> None:
        """The step is part of the state from here on."""
        self.step, self.cursor = plan.step, plan.cursor
        self.version, self.digest = version, digest

    async def commit(self, plan: StepPlanned, done: Computed, *, seconds_wait: float) -> None:
        """Tell the world: weight object first, so that no commit names weights that are not there."""
        trained = not done.skipped
        version = plan.version + 1 if trained else plan.version
        digest = await self.digest_after(done)
        uri = await self._put_weights(version, digest, done.data) if trained else ""
        committed = StepCommitted(
            writer_id=self.pen.writer_id,
            at_us=now_us(),
            step=plan.step,
            status="trained" if trained else "skipped",
            reason=done.skipped,
            version=version,
            digest=digest,
            dropped=() if trained else dropped_by_skip(plan.groups, done.skipped),
            metrics=done.metrics | {"seconds_wait": seconds_wait},
        )
        await self.pen.write(committed)
        self.ledger.committed[plan.step] = committed
        self.moved(plan, version=version, digest=digest)
        if trained:
            await self._announce_weights(uri, len(done.data))
        elif done.skipped in INCIDENTS:
            await self.pen.incident("step_skipped", f"step {plan.step}: {done.skipped}")
        self._count(committed)
        log.info(
            "step committed", step=plan.step, status=committed.status, reason=done.skipped,
            version=version, reward=done.metrics.get("reward_mean"), loss=done.metrics.get("loss"),
            tokens=done.metrics.get("tokens"), seconds_train=_round(done.metrics, "seconds_train"),
            seconds_wait=round(seconds_wait, 2),
        )  # fmt: skip

    def _count(self, committed: StepCommitted) -> None:
        gauges.learner_step.set(committed.step)
        gauges.learner_version.set(committed.version)
        gauges.learner_steps_total.labels(committed.status).inc()
        for group in (*self.ledger.planned[committed.step].dropped, *committed.dropped):
            gauges.learner_dropped_total.labels(group.reason).inc()
        if committed.status == "trained":
            gauges.learner_tokens_total.inc(committed.metrics["tokens"] or 0)
            gauges.step_seconds.observe(committed.metrics["seconds_train"] or 0)
        gauges.wait_seconds.observe(committed.metrics["seconds_wait"] or 0)

    async def publish_weights(self) -> None:
        """Publish the weights in force under the version in force."""
        data = await self.workshop.do("model weights", self.trainer.weights)
        uri = await self._put_weights(self.version, self.digest, data)
        await self._announce_weights(uri, len(data))

    async def publish_committed(self, committed: StepCommitted, size: int) -> None:
        """Tell of the weights that an earlier life stored and committed, if they are still there.

        A redo that comes out differently cannot make them again, and some may wait for just this version.
        """
        there = await weights.stored(self.bus, self.weights_folder)
        for uri, found in there.items():
            if found == (committed.version, committed.digest):
                await self._announce_weights(uri, size, committed.digest)
                return

    async def _put_weights(self, version: int, digest: str, data: bytes) -> str:
        return await weights.publish(
            self.bus, self.settings.weights, self.weights_folder, version, digest, data
        )

    async def _announce_weights(self, uri: str, size: int, digest: str | None = None) -> None:
        """digest: of an earlier life's weights, where it is not those in force."""
        if self.offers is not None and digest is None:
            # Before anybody can ask for them.
            offer = partial(self.offers.put, self.version, self.digest, self.trainer.model)
            await self.workshop.do("weights to offer", offer)
        event = WeightsPublished(
            writer_id=self.pen.writer_id,
            at_us=now_us(),
            version=self.version,
            step=self.step,
            digest=digest or self.digest,
            uri=uri,
            bytes=size,
        )
        await self.pen.write(event)
        self.ledger.published[self.version] = event

    async def checkpoint(self) -> float:
        """Write a checkpoint of the state in force, announce it, and delete those beyond retention.

        Returns the seconds of writing it, without the wait for gradients under way.
        """
        path, seconds = await self.workshop.do(f"checkpoint {self.step}", self._write_checkpoint)
        event = CheckpointWritten(
            writer_id=self.pen.writer_id,
            at_us=now_us(),
            step=self.step,
            version=self.version,
            uri=path.absolute().as_uri(),
            digest=self.digest,
            cursor=self.cursor,
        )
        await self.pen.write(event)
        self.ledger.checkpoints.append(event)
        self.checkpointed = self.step
        await self.pen.advanced(self.cursor, self.digest)
        kept = self.ledger.checkpoints[-self.settings.keep_checkpoints :]
        names = [checkpoints.folder_name(event.step, event.version) for event in kept]
        names += reference.pinned(self.settings.kl, self.checkpoint_folder)
        await self.workshop.do(
            "old checkpoints", lambda: checkpoints.remove_others(self.checkpoint_folder, names)
        )
        return seconds

    def _write_checkpoint(self) -> tuple[Path, float]:
        began = time.monotonic()
        model, optimizer = self.trainer.state()
        state = checkpoints.CheckpointState(
            step=self.step,
            version=self.version,
            cursor=self.cursor,
            rng=self.trainer.rng(),
            config_sha256=self.environment.config_sha256,
            world_size=1,
            threads=self.environment.threads,
            libraries=self.environment.libraries,
            model_sha256=hashlib.sha256(model).hexdigest(),
            optimizer_sha256=hashlib.sha256(optimizer).hexdigest(),
        )
        path = checkpoints.write(
            self.checkpoint_folder, checkpoints.Checkpoint(state, model, optimizer)
        )
        return path, time.monotonic() - began


def _round(metrics: Metrics, name: str) -> float | None:
    value = metrics.get(name)
    return None if value is None else round(value, 2)
