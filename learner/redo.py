"""Where a learner begins: the newest checkpoint that verifies, or the warm-up, and the steps since, again.

Every planned step is redone from the log, in its order, and its weights are compared with the digest
that was committed. What an earlier life did not get to tell is told now; nothing is told twice.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlparse

import structlog

from broker.errors import SluiceError
from broker.messages import CheckpointWritten, GroupAnnotated, StepPlanned
from broker.topology import Log
from learner.checkpoint import BadCheckpoint, Checkpoint, read
from learner.computed import Computed
from learner.model import digest_of
from learner.reference import first_weights, make_reference
from learner.steps import Steps

log = structlog.get_logger()


class RedoMismatch(SluiceError):
    """Redone steps came out differently than committed: other hardware, libraries, kernels or program."""


class LogIncomplete(SluiceError):
    """Steps cannot be redone: what they were made of is gone."""


@dataclass(frozen=True)
class Mismatch:
    step: int
    committed: str
    redone: str

    def __str__(self) -> str:
        return f"step {self.step}: committed weights {self.committed}, redone {self.redone}"


async def recover(steps: Steps, warm_up: Callable[[], None]) -> None:
    """Bring the state to the end of LEDGER; complete what is missing there.

    warm_up changes the model in place and is called in the workshop when no checkpoint can be used.
    Raises RedoMismatch when digests differ and the settings say halt.
    """
    found: list[Mismatch] = []
    if not await _load_checkpoint(steps):
        found += await _begin(steps, warm_up)
    if steps.version > steps.ledger.last_published:
        await steps.publish_weights()
    for number in range(steps.step + 1, steps.ledger.last_to_redo + 1):
        found += await _redo(steps, number)
        if found and steps.settings.on_mismatch == "halt":
            break
    for mismatch in found:
        await steps.pen.incident("redo_mismatch", str(mismatch))
    if found and steps.settings.on_mismatch == "halt":
        raise RedoMismatch(
            f"{found[0]}; halting, since learner.on_mismatch is halt (republish would go on from the "
            "redone weights)"
        )
    if steps.ledger.ended:
        return
    published = steps.ledger.published.get(steps.version)
    agreed = published is not None and published.digest == steps.digest
    if not agreed or steps.ledger.last_published > steps.version:
        await _republish(steps)
    elif found:
        # So that the steps that came out differently are never redone again.
        await steps.checkpoint()


async def _republish(steps: Steps) -> None:
    """The weights in force become a new version, above all that anybody may have fetched."""
    steps.version = max(steps.version, steps.ledger.last_published) + 1
    # Checkpoint first: a crash before the publication is then completed, not redone once more.
    await steps.checkpoint()
    await steps.publish_weights()


async def _load_checkpoint(steps: Steps) -> bool:
    """Restore the newest checkpoint that verifies; False when there is none."""
    for event in reversed(steps.ledger.checkpoints):
        try:
            loaded = await steps.workshop.do(
                f"checkpoint {event.step}", lambda event=event: _restore(steps, event)
            )
        except BadCheckpoint as error:
            log.error("checkpoint unusable", step=event.step, error=str(error))
            await steps.pen.incident("checkpoint_unusable", str(error))
            continue
        log.info("checkpoint loaded", step=loaded.state.step, version=loaded.state.version)
        return True
    return False


def _restore(steps: Steps, event: CheckpointWritten) -> Checkpoint:
    loaded = read(Path(unquote(urlparse(event.uri).path)))
    state = loaded.state
    if (state.step, state.version, state.model_sha256) != (event.step, event.version, event.digest):
        raise BadCheckpoint(
            f"checkpoint {event.uri}: holds step {state.step}, version {state.version}; "
            f"announced as step {event.step}, version {event.version}, {event.digest}"
        )
    put_in_force(steps, loaded)
    return loaded


def put_in_force(steps: Steps, loaded: Checkpoint) -> None:
    """The state of a checkpoint becomes the learner's; called in the workshop.

    Raises LogIncomplete, with nothing changed, when what the KL term compares with is gone.
    """
    state, there = loaded.state, steps.environment
    try:
        first = first_weights(steps.settings.kl, steps.checkpoint_folder, step=state.step)
    except BadCheckpoint as error:
        raise LogIncomplete(f"learner.kl compares with the run's version 0: {error}") from error
    if (state.config_sha256, state.threads, state.libraries) != (
        there.config_sha256, there.threads, there.libraries,
    ):  # fmt: skip
        log.warning("checkpoint comes from another environment: redone steps may differ")
    steps.trainer.restore(loaded.model, loaded.optimizer, state.rng)
    steps.step, steps.version, steps.cursor = state.step, state.version, state.cursor
    steps.digest, steps.checkpointed = state.model_sha256, state.step
    set_reference(steps, first)


def set_reference(steps: Steps, first: bytes | None) -> None:
    """What the KL term compares with, once the model is where it should be; called in the workshop."""
    kl = steps.settings.kl
    if kl is not None:
        steps.trainer.reference = make_reference(kl, steps.trainer, first)


async def _begin(steps: Steps, warm_up: Callable[[], None]) -> list[Mismatch]:
    """Warm up from nothing; write checkpoint 0 unless one was written and then lost."""
    await steps.workshop.do_alone("warm-up", warm_up)
    await steps.workshop.do("reference model", lambda: set_reference(steps, None))
    steps.digest = digest_of(await steps.workshop.do("model weights", steps.trainer.weights))
    if not steps.ledger.checkpoints:
        await steps.checkpoint()
        return []
    first = steps.ledger.checkpoints[0]
    if first.step != 0 or first.digest == steps.digest:
        return []
    return [Mismatch(0, first.digest, steps.digest)]


async def _redo(steps: Steps, number: int) -> list[Mismatch]:
    """Take one planned step again and tell what is still untold about it."""
    plan = steps.ledger.planned.get(number)
    if plan is None:
        raise LogIncomplete(f"step {number}: LEDGER no longer holds its plan")
    committed = steps.ledger.committed.get(number)
    if committed is None and number in steps.ledger.ended_steps:
        # Its groups ended with the run; the retries of a resumed run are groups of their own.
        ended = Computed("run_ended", b"", {"groups": 0, "signal_groups": None})
        await steps.commit(plan, ended, seconds_wait=0.0)
        return []
    if committed is not None and committed.status == "skipped":
        steps.moved(plan, version=committed.version, digest=steps.digest)
        return _compare(number, committed.digest, steps.digest)
    done = await steps.compute(plan, await fetch_groups(steps, plan))
    digest = await steps.digest_after(done)
    log.info("step redone", step=number, digest=digest)
    if committed is None:
        await steps.commit(plan, done, seconds_wait=0.0)
        return []
    steps.moved(plan, version=committed.version, digest=digest)
    if committed.version not in steps.ledger.published:
        if digest == committed.digest:
            await steps.publish_weights()
        else:
            await steps.publish_committed(committed, len(done.data))
    return _compare(number, committed.digest, digest)


def _compare(step: int, committed: str, redone: str) -> list[Mismatch]:
    return [] if committed == redone else [Mismatch(step, committed, redone)]


async def fetch_groups(steps: Steps, plan: StepPlanned) -> list[GroupAnnotated]:
    """The groups of a plan from ANNOTATED, in training order. LogIncomplete when one is gone."""
    found = await asyncio.gather(
        *(steps.bus.get(Log.ANNOTATED, planned.stream_seq) for planned in plan.groups)
    )
    groups: list[GroupAnnotated] = []
    for planned, stored in zip(plan.groups, found, strict=True):
        event = stored.event() if stored is not None else None
        if not isinstance(event, GroupAnnotated) or event.group.group_id != planned.group_id:
            raise LogIncomplete(
                f"step {plan.step}: ANNOTATED {planned.stream_seq} no longer holds {planned.group_id}"
            )
        groups.append(event)
    return groups
