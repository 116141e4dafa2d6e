"""`sluice replay`: take recorded steps again, from a kept checkpoint and the log, and compare the weights.

Reads the run's logs and checkpoints, and writes to neither.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from broker.bus import Bus
from broker.errors import BadConfiguration
from broker.settings import RunSettings
from broker.telemetry import Health
from broker.topology import Log
from learner.checkpoint import BadCheckpoint, read
from learner.export import checkpoint_paths
from learner.fold import Ledger
from learner.redo import LogIncomplete, fetch_groups, put_in_force
from learner.settings import LearnerSettings, ModelSettings, WarmupSettings
from learner.steps import Steps
from learner.worker import prepare
from learner.workshop import Workshop


@dataclass(frozen=True)
class Retaken:
    """One step, or the checkpoint that a replay began from."""

    step: int
    status: str
    """`trained`, `skipped`, or `checkpoint`."""
    committed: str
    """Weight digest on record."""
    redone: str
    """Weight digest that came out."""

    @property
    def equal(self) -> bool:
        return self.committed == self.redone


@dataclass
class Replay:
    """What came of it."""

    to_step: int
    retaken: list[Retaken] = field(default_factory=list)
    """In order, the checkpoint first; empty when `to_step` cannot be reached."""
    missing: list[str] = field(default_factory=list)
    """Why it cannot be reached, or not from an older checkpoint."""

    @property
    def reached(self) -> bool:
        return bool(self.retaken) and self.retaken[-1].step == self.to_step

    @property
    def agrees(self) -> bool:
        return self.reached and all(one.equal for one in self.retaken)


async def replay(
    bus: Bus,
    *,
    run: RunSettings,
    model: ModelSettings,
    model_dir: Path,
    settings: LearnerSettings,
    warmup: WarmupSettings,
    run_dir: Path,
    to_step: int | None,
    progress: Callable[[Retaken], None],
) -> Replay:
    """Redo the steps up to `to_step` (None: the last committed) from the oldest checkpoint that allows it.

    progress: told of each step as it is done. BadConfiguration when that step was never committed.
    """
    health = Health("replay")
    with Workshop(
        threads=settings.threads,
        deterministic=run.deterministic,
        health=health,
        stop=asyncio.Event(),
    ) as workshop:
        steps = await prepare(
            bus, workshop, run=run, model=model, model_dir=model_dir, settings=settings,
            warmup=warmup, run_dir=run_dir,
        )  # fmt: skip
        found = Replay(_committed_step(steps.ledger, to_step))
        first_kept = (await bus.state(Log.ANNOTATED)).first
        paths = checkpoint_paths(run_dir)
        for step in sorted(step for step in paths if step <= found.to_step):
            hindrance = first_hindrance(steps.ledger, step + 1, found.to_step, first_kept)
            if hindrance:
                found.missing.append(f"from checkpoint {step}: {hindrance}")
                continue
            try:
                await workshop.do(
                    f"checkpoint {step}", lambda at=paths[step]: put_in_force(steps, read(at))
                )
            except (BadCheckpoint, LogIncomplete) as error:
                found.missing.append(f"from checkpoint {step}: {error}")
                continue
            await _retake(steps, found, progress)
            return found
        found.missing += _no_checkpoint(sorted(paths), found.to_step)
        return found


def _committed_step(ledger: Ledger, asked: int | None) -> int:
    last = max(ledger.committed, default=0)
    if asked is None:
        return last
    if not 0 <= asked <= last:
        raise BadConfiguration(f"--to-step {asked}: expected 0..{last}, the last committed step")
    return asked


def first_hindrance(ledger: Ledger, first: int, last: int, first_kept: int) -> str:
    """Why the steps first..last cannot all be redone; empty when they can. Pure.

    first_kept: sequence of the oldest message in ANNOTATED.
    """
    for number in range(first, last + 1):
        plan, committed = ledger.planned.get(number), ledger.committed.get(number)
        if committed is None or (plan is None and committed.status == "trained"):
            what = "its commit" if committed is None else "its plan"
            return f"step {number}: LEDGER no longer holds {what}"
        if plan is None or committed.status == "skipped":
            continue
        oldest = min((group.stream_seq for group in plan.groups), default=first_kept)
        if oldest < first_kept:
            return (
                f"step {number}: ANNOTATED was purged up to {first_kept - 1:,}; "
                f"its groups begin at {oldest:,}"
            )
    return ""


def _no_checkpoint(kept: list[int], to_step: int) -> list[str]:
    below = [step for step in kept if step <= to_step]
    listed = ", ".join(map(str, kept)) or "none"
    if below:
        return [f"checkpoints kept: {listed}"]
    return [f"no checkpoint at or before step {to_step} is kept; kept: {listed}"]


async def _retake(steps: Steps, found: Replay, progress: Callable[[Retaken], None]) -> None:
    """From the checkpoint in force to the step asked for."""

    def tell(status: str, committed: str) -> None:
        one = Retaken(steps.step, status, committed, steps.digest)
        found.retaken.append(one)
        progress(one)

    tell("checkpoint", _digest_of_checkpoint(steps))
    for number in range(steps.step + 1, found.to_step + 1):
        plan, committed = steps.ledger.planned.get(number), steps.ledger.committed[number]
        if plan is None or committed.status == "skipped":
            steps.step = number
        else:
            try:
                done = await steps.compute(plan, await fetch_groups(steps, plan))
            except LogIncomplete as error:  # purged meanwhile
                found.missing.append(str(error))
                return
            digest = await steps.digest_after(done)
            steps.moved(plan, version=committed.version, digest=digest)
        tell(committed.status, committed.digest)


def _digest_of_checkpoint(steps: Steps) -> str:
    """As announced, or as committed; its own where LEDGER has forgotten both."""
    announced = [
        event.digest
        for event in steps.ledger.checkpoints
        if (event.step, event.version) == (steps.step, steps.version)
    ]
    committed = steps.ledger.committed.get(steps.step)
    if announced:
        return announced[-1]
    if committed is not None and committed.version == steps.version:
        return committed.digest
    return steps.digest
