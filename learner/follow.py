"""The learner's loop: window, sweep, write ahead, train, commit, publish, checkpoint, until the run ends."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import structlog

from broker import weights
from broker.messages import GroupAnnotated, StepPlanned
from broker.settings import RunSettings
from broker.telemetry import Health, now_us
from learner.batch import Prepared, rows_of, rows_of_group
from learner.computed import Computed, Started
from learner.identity import BANDS, NotIdentical, check, comparable
from learner.intake import WindowReader
from learner.retention import Pins, deletable, kept_versions, orphans
from learner.space import EarlyCheckpoint
from learner.steps import Steps
from learner.watch import RunWatch
from learner.windows import Rules, Window, make_plan, sweep

log = structlog.get_logger()

WINDOW_LIMIT_S = 12 * 3600.0
"""No window for this long: the run is stuck in a way that its dispatcher does not see."""
END_LIMIT_S = 12 * 3600.0
"""From the last step to the end of the run: the final evaluation."""


async def _prepared(reader: WindowReader) -> tuple[Window, Prepared]:
    """The next window and the rows of its groups, made while the previous step runs."""
    window = await reader.next()
    # What is malformed is left to the sweep, which drops it with a reason.
    groups = [
        group
        for member in window.members
        if (group := member.group) is not None
        and group.request is not None
        and len(group.generations) == len(group.annotations)
    ]
    return window, await asyncio.to_thread(
        lambda: {group.group.group_id: rows_of_group(group) for group in groups}
    )


class Follower:
    """Trains windows in order from where `steps` stands."""

    def __init__(
        self, steps: Steps, *, run: RunSettings, watch: RunWatch, health: Health, vocabulary: int
    ) -> None:
        self._steps = steps
        self._run = run
        self._watch = watch
        self._health = health
        self._rules = Rules(
            max_staleness=run.max_staleness,
            vocabulary=vocabulary,
            min_fresh_share=steps.settings.min_fresh_share,
            ended_verified=steps.ledger.ended_verified,
        )
        self._pins = Pins(steps.bus)
        self._early = EarlyCheckpoint(steps.bus)
        self._deleted: set[int] = set()
        self._identical = False
        """This life's trainer and the engine were seen to agree."""
        self._gathering: asyncio.Task[tuple[Window, Prepared]] | None = None
        """The next window."""
        self._ahead: asyncio.Task[Started] | None = None
        """Gradients of the next step, while the one before it is told of."""

    async def follow(self) -> None:
        """Returns when the run has ended or the process is asked to stop. Raises Replaced."""
        steps = self._steps
        reader = WindowReader(steps.bus, after=steps.cursor, next_window=steps.step + 1)
        self._gathering = asyncio.create_task(_prepared(reader))
        try:
            await self._delete_orphans()
            await self._checkpoint_if_due()
            # Asked here too: with a window always ready and short steps, nothing else would notice.
            while steps.step < self._run.steps and not self._watch.stopping:
                self._note()
                started = time.monotonic()
                what = f"window {steps.step + 1} of the policy"
                found = await self._watch.result_of(
                    self._gathering, what, WINDOW_LIMIT_S, meanwhile=self._checkpoint_early
                )
                if found is None:
                    break
                # The next batch is prepared while this one is trained; it is swept when its turn comes.
                self._gathering = asyncio.create_task(_prepared(reader))
                if not await self._train(*found, seconds_wait=time.monotonic() - started):
                    return
            self._note()
            if not self._watch.stopping:
                if steps.checkpointed < steps.step:
                    await steps.checkpoint()
                await self._watch.wait_for_end("end of the run", END_LIMIT_S)
        finally:
            await self._give_up(self._gathering, self._ahead)
            await reader.close()
            await self._pins.close()

    async def _train(self, window: Window, ready: Prepared, *, seconds_wait: float) -> bool:
        """One window, from sweep to checkpoint. False when the run ended first: the step does not count."""
        steps = self._steps
        if await self._watch.ended():
            return False
        plan, groups = self._plan(window, steps.version)
        await self._check_identity(groups, ready)
        # Written ahead: a crash from here on redoes exactly this step.
        await steps.pen.write(plan)
        steps.ledger.planned[plan.step] = plan
        for dropped in plan.dropped:
            log.warning("group dropped", group_id=dropped.group_id, reason=dropped.reason)
        housekeeping = asyncio.create_task(self._delete_old_weights())
        try:
            done = await self._computed(plan, groups, ready)
            await housekeeping
        finally:
            await self._give_up(housekeeping)
        if await self._watch.ended():
            return False
        if not self._is_checkpoint_due(plan.step):
            self._look_ahead(plan.version if done.skipped else plan.version + 1)
        await steps.commit(plan, done, seconds_wait=seconds_wait)
        await self._checkpoint_if_due()
        return True

    def _plan(self, window: Window, version: int) -> tuple[StepPlanned, list[GroupAnnotated]]:
        """What a step from `version` makes of a window, and the groups it trains."""
        swept = sweep(window.members, self._rules, version=version)
        writer = self._steps.pen.writer_id
        plan = make_plan(window, swept, version=version, writer_id=writer, at_us=now_us())
        return plan, [member.group for member, _ in swept.kept if member.group is not None]

    def _look_ahead(self, version: int) -> None:
        """If the next window is there, begin with its gradients while the weights it starts from are stored.

        It is swept again when its turn comes, and only then planned. Not where engines are offered weights
        from this process, nor before a checkpoint: both would wait behind the gradients.
        """
        gathering, steps = self._gathering, self._steps
        if gathering is None or not gathering.done() or gathering.exception() is not None:
            return
        window, ready = gathering.result()
        if self._identical and steps.offers is None and window.number <= self._run.steps:
            plan, groups = self._plan(window, version)
            self._ahead = asyncio.create_task(steps.start(plan, groups, ready))

    async def _computed(
        self, plan: StepPlanned, groups: Sequence[GroupAnnotated], ready: Prepared
    ) -> Computed:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            started = await ahead
            if started.fits(plan):
                return await self._steps.finish(plan, started)
        return await self._steps.compute(plan, groups, ready)

    @staticmethod
    async def _give_up(*tasks: asyncio.Task[Any] | None) -> None:
        begun = [task for task in tasks if task is not None]
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)

    async def _check_identity(self, groups: Sequence[GroupAnnotated], ready: Prepared) -> None:
        """Once a life, as soon as a window has tokens of the weights in force. Raises NotIdentical."""
        steps = self._steps
        if self._identical:
            return
        rows = comparable(rows_of(groups, version=steps.version, ready=ready))
        if not rows:
            return
        trainer, band = steps.trainer, steps.settings.identity_band
        if band is None:
            band = BANDS[str(trainer.dtype).removeprefix("torch.")]
        try:
            found = await steps.workshop.do_alone(
                "identity check", lambda: check(trainer, rows, band)
            )
        except NotIdentical as error:
            await steps.pen.incident("not_identical", str(error))
            raise
        log.info("trainer and engine agree", gap=found.gap, worst=found.worst, tokens=found.tokens)
        self._identical = True

    async def _checkpoint_if_due(self) -> None:
        """Every so many steps, and after the last; after a redo too, which may have gone past one."""
        if self._watch.stopping:
            # The next life redoes the steps; a large checkpoint would outlast the time to leave.
            return
        if self._is_checkpoint_due(self._steps.step):
            await self._steps.checkpoint()
        else:
            await self._checkpoint_early()

    def _is_checkpoint_due(self, step: int) -> bool:
        """Once the step is committed."""
        done = step - self._steps.checkpointed
        return done >= self._steps.settings.checkpoint_every or (
            step == self._run.steps and done > 0
        )

    async def _checkpoint_early(self) -> None:
        """When a log fills up, so that its older part may go; a log may fill while a window is awaited."""
        steps = self._steps
        if self._watch.stopping or steps.checkpointed >= steps.step:
            return
        if why := await self._early.fullest():
            log.info("early checkpoint", step=steps.step, reason=why)
            self._early.taken(await steps.checkpoint())

    async def _delete_orphans(self) -> None:
        """What earlier lives left behind; and take stock of what they have deleted."""
        steps = self._steps
        stored = await weights.stored(steps.bus, steps.weights_folder)
        published, pinned = steps.ledger.published, await self._pins.read()
        for uri in orphans(stored, published, pinned=pinned):
            log.info("deleted weights that nobody can ask for", uri=uri)
            await weights.delete(steps.bus, uri)
        self._deleted = published.keys() - {version for version, _ in stored.values()}

    async def _delete_old_weights(self) -> None:
        published = self._steps.ledger.published
        alive = published.keys() - self._deleted
        newest = kept_versions(self._run.pace_steps)
        if len(alive) <= newest:
            return
        pinned = await self._pins.read()
        for version in deletable(alive, pinned=pinned, newest=newest):
            await weights.delete(self._steps.bus, published[version].uri)
            self._deleted.add(version)

    def _note(self) -> None:
        self._health.note(step=self._steps.step, steps=self._run.steps, version=self._steps.version)
