"""Takes a run from its last draw to its end: draining, the final evaluation, RunEnded."""

import asyncio

import structlog

from broker.bus import Bus
from broker.errors import Conflict, Replaced, TooLong
from broker.messages import RunDraining, RunEnded
from broker.settings import RunSettings
from broker.telemetry import Health, now_us
from broker.topology import Log, kind_subjects
from workers.dispatcher.ending import Ending, awaited, drain_limit_s
from workers.dispatcher.evaluating import Evaluating
from workers.dispatcher.following import Followers
from workers.dispatcher.outbox import Outbox
from workers.dispatcher.state import State
from workers.dispatcher.waits import CurrentWait

RUN_LOGS = (Log.REQUESTS, Log.GENERATED, Log.VERIFIED, Log.ANNOTATED, Log.LEDGER)
END_TRIES = 100
END_PAUSE_S = 0.05
READ_LIMIT_S = 120.0

log = structlog.get_logger()


class Finishing:
    def __init__(
        self,
        bus: Bus,
        state: State,
        outbox: Outbox,
        followers: Followers,
        evaluating: Evaluating,
        run: RunSettings,
        health: Health,
    ) -> None:
        self._bus = bus
        self._state = state
        self._outbox = outbox
        self._followers = followers
        self._evaluating = evaluating
        self._run = run
        self._health = health

    async def drain(self, ending: Ending) -> None:
        """Put on record that no more training groups are requested, and which ones are open."""
        log.info("draining", reason=str(ending))
        draining = RunDraining(
            writer_id=self._outbox.writer_id,
            at_us=now_us(),
            reason=str(ending),
            open_groups=tuple(group.group_id for group in self._state.groups.open_groups()),
        )
        sequence = await self._outbox.ledger(draining, expect_subject=self._state.life.draining)
        # The state must know before the next turn asks again whether to drain.
        with self._health.waiting_for(f"LEDGER read to {sequence}", READ_LIMIT_S):
            try:
                async with asyncio.timeout(READ_LIMIT_S):
                    await self._followers.until_ledger(sequence)
            except TimeoutError:
                raise TooLong(f"dispatcher: LEDGER was not read to {sequence}") from None

    async def work(self, wait: CurrentWait, idle_s: float) -> bool:
        """Wait for training, evaluate once more, end; True when ended.

        idle_s: for how long nothing has moved the run.
        """
        state, hurried = self._state, self._state.life.hurried
        for version in state.evaluations.begun():
            await self._evaluating.work(version, hurried=hurried)
        waiting, limit_s = awaited(state, self._run), drain_limit_s(state, self._run)
        if waiting is not None and idle_s < limit_s and not hurried:
            wait.name(waiting, limit_s)
            return False
        unfinished = await self._evaluate_last(hurried=hurried)
        if unfinished is not None:
            wait.name(self._evaluating.waits_for(unfinished), self._evaluating.wait_s)
            return False
        await self._end(_outcome(state, waiting))
        return True

    async def _evaluate_last(self, *, hurried: bool) -> int | None:
        """A version whose evaluation is not finished, the newest one's included."""
        state = self._state
        # A run whose learner never published has nothing to evaluate.
        if state.published is not None and not self._evaluating.is_finished(state.version):
            await self._evaluating.work(state.version, hurried=hurried)
        versions = {*state.evaluations.begun()}
        if state.published is not None:
            versions.add(state.version)
        return min((v for v in versions if not self._evaluating.is_finished(v)), default=None)

    async def _end(self, ending: Ending) -> None:
        """RunEnded with each log's last sequence that counts.

        LEDGER's value is the sequence right before RunEnded, which counts too; compare-and-set on
        the whole log makes sure that nothing comes in between.
        """
        for _ in range(END_TRIES):
            lasts = {str(name): (await self._bus.state(name)).last for name in RUN_LOGS}
            ended = RunEnded(
                writer_id=self._outbox.writer_id,
                at_us=now_us(),
                reason=ending.detail,
                status=ending.status,
                last_sequences=lasts,
            )
            await self._refuse_other_end()
            try:
                sequence = await self._bus.publish(ended, expect_log=lasts[Log.LEDGER])
            except Conflict:
                await asyncio.sleep(END_PAUSE_S)
                continue
            log.info("ended", status=ending.status, reason=ending.detail, sequence=sequence)
            return
        raise TooLong(f"dispatcher: LEDGER never rested for RunEnded in {END_TRIES} tries")

    async def _refuse_other_end(self) -> None:
        last = await self._bus.last(Log.LEDGER, kind_subjects(self._bus.run, RunEnded.KIND))
        if last is not None and last.sequence > self._state.life.started:
            raise Replaced("dispatcher: another one has ended the run")


def _outcome(state: State, waiting: str | None) -> Ending:
    """How the run ends; failed when a planned step is given up."""
    ending = Ending.parse(state.life.drain_reason)
    if waiting is None:
        return ending
    status = "failed" if state.uncommitted_step is not None else ending.status
    return Ending(status, f"{ending.detail}; gave up waiting for {waiting}")
