"""The dispatcher: draws and paces, retries, evaluates, ends the run. One per run; a rival replaces it.

It keeps nothing of its own: what it knows is a fold of the logs, so a restart goes on exactly
where the last one was. Every publication is compare-and-set.
"""

import asyncio
import time
from collections.abc import Awaitable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from broker.bus import Bus
from broker.errors import BadConfiguration, TooLong
from broker.settings import RunSettings
from broker.telemetry import Health, writer_id
from broker.topology import Log
from workers.dispatcher.ending import Ending, why_drain
from workers.dispatcher.evaluating import Evaluating
from workers.dispatcher.finishing import Finishing
from workers.dispatcher.following import Followers, catch_up
from workers.dispatcher.janitor import Janitor
from workers.dispatcher.opening import (
    Start,
    last_start,
    record_start,
    refuse_other_configuration,
    refuse_other_data,
)
from workers.dispatcher.outbox import Outbox
from workers.dispatcher.rendering import Renderer
from workers.dispatcher.requests import RequestBuilder
from workers.dispatcher.settings import (
    EvaluationSettings,
    PromptSettings,
    SamplingSettings,
    SourceSettings,
    longest_answer,
)
from workers.dispatcher.sources import Source
from workers.dispatcher.sources import load as load_sources
from workers.dispatcher.state import State
from workers.dispatcher.training import Training
from workers.dispatcher.waits import FULL_LIMIT_S, CurrentWait, Stillness

POLL_S = 0.5
START_LIMIT_S = 6 * 3600.0
"""For the warm-up, the first model weights and the first mixture."""
IDLE_LIMIT_S = 3600.0
"""Without any news from any log for so long, with space in all, a run ends as making no progress."""
SHOW_FULL_S = 2.0
"""When nothing has moved for so long, a full log may be what everybody waits for."""
FULL_PAUSE_S = 4.0
"""And after so long, one group more is asked for."""
COHORT_LIMIT = 1000
"""Messages in one atomic batch."""

log = structlog.get_logger()


async def run(
    bus: Bus,
    *,
    run: RunSettings,
    sources: tuple[SourceSettings, ...],
    prompt: PromptSettings,
    sampling: SamplingSettings,
    evaluation: EvaluationSettings,
    tokenizer_dir: Path,
    config_json: str,
    config_sha256: str,
    versions: dict[str, str],
    health: Health,
    stop: asyncio.Event,
    resume: bool = False,
) -> None:
    """Until the run has ended or `stop` is set. `resume` starts an ended run again.

    Raises BadConfiguration before anything is published, Replaced when another dispatcher took over.
    """
    if run.deterministic and run.groups_per_step > COHORT_LIMIT:
        raise BadConfiguration(
            f"run.groups_per_step = {run.groups_per_step}: with run.deterministic a step's requests "
            f"are published as one batch of at most {COHORT_LIMIT}"
        )
    work = Work(run, sources, prompt, sampling, evaluation, tokenizer_dir)
    start = Start(config_json, config_sha256, versions, resume)
    await _beside(_live(bus, work, start, health, stop), _beat(health))


@dataclass(frozen=True)
class Work:
    """What is asked for, and how."""

    run: RunSettings
    sources: tuple[SourceSettings, ...]
    prompt: PromptSettings
    sampling: SamplingSettings
    evaluation: EvaluationSettings
    tokenizer_dir: Path

    def builder(self, writer: str) -> RequestBuilder:
        """Loads and checks everything that requests are made of; takes seconds."""
        longest = longest_answer(self.sampling, self.evaluation)
        renderer = Renderer(self.tokenizer_dir, self.prompt, answer_tokens=longest)
        loaded = load_sources(self.sources, renderer, seed=self.run.seed)
        for source in loaded:
            _log_skipped(source)
        return RequestBuilder(
            self.run,
            loaded,
            renderer,
            sampling=self.sampling,
            evaluation=self.evaluation,
            writer_id=writer,
        )


async def _live(bus: Bus, work: Work, start: Start, health: Health, stop: asyncio.Event) -> None:
    state, run = State(max_attempts=work.run.max_attempts), work.run
    outbox = Outbox(bus, state, writer_id=writer_id("dispatcher"))
    followers = await catch_up(bus, state, health)
    try:
        if state.life.is_ended and not start.resume:
            log.info("the run has ended", reason=state.life.drain_reason)
            return
        before = await last_start(bus)
        refuse_other_configuration(before, start.config_json)
        builder = await asyncio.to_thread(work.builder, outbox.writer_id)
        await refuse_other_data(bus, builder.sources)
        started = await record_start(outbox, state, before, start, run)
        if started is not None:
            await followers.ledger.read_to(started, health)
        evaluating = Evaluating(state, outbox, builder, run, work.evaluation)
        janitor = Janitor(bus, state, outbox)
        dispatcher = Dispatcher(
            run=run,
            state=state,
            followers=followers,
            training=Training(bus, state, outbox, builder, run),
            evaluating=evaluating,
            finishing=Finishing(bus, state, outbox, followers, evaluating, run, health),
            janitor=janitor,
            health=health,
            stop=stop,
        )
        try:
            await janitor.clean()
            await _beside(_beside(dispatcher.live(), followers.follow()), janitor.work())
        finally:
            await janitor.close()
    finally:
        await followers.close()


def _log_skipped(source: Source) -> None:
    for items in (source.train, source.held_out):
        if items.skipped:
            log.warning(
                "rows left out", domain=source.domain, dataset=items.dataset,
                rows=len(items.skipped), first=items.skipped[0],
            )  # fmt: skip


async def _beat(health: Health) -> None:
    while True:
        health.beat()
        await asyncio.sleep(POLL_S)


async def _beside(main: Awaitable[None], background: Coroutine[Any, Any, None]) -> None:
    """Await `main` while `background` runs; the first error of either ends both."""
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(background)
            try:
                await main
            finally:
                task.cancel()
    except BaseExceptionGroup as errors:
        # One line for the user: the first cause, not the tree of tasks it passed through.
        first: BaseException = errors
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None


@dataclass(frozen=True)
class Dispatcher:
    """Turns until the run has ended: each does everything that is due, then waits for news."""

    run: RunSettings
    state: State
    followers: Followers
    training: Training
    evaluating: Evaluating
    finishing: Finishing
    janitor: Janitor
    health: Health
    stop: asyncio.Event

    async def live(self) -> None:
        still = Stillness.since(time.monotonic(), self.state.moves)
        with CurrentWait(self.health) as wait:
            while not self.stop.is_set():
                still.look(time.monotonic(), self.state.moves, full=bool(self.janitor.full))
                if await self._turn(wait, still):
                    return
                self._note()
                await self.followers.any_news(POLL_S)

    async def _turn(self, wait: CurrentWait, still: Stillness) -> bool:
        """Do everything that is due; True when the run has ended."""
        await self.training.report_given_up()
        ending = self._why_drain(still)
        if ending is not None:
            await self.finishing.drain(ending)
        if self.state.life.is_draining:
            return await self.finishing.work(wait, still.idle_s)
        if not self.janitor.full:
            await self._request()
        elif still.idle_s > FULL_PAUSE_S and str(Log.LEDGER) not in self.janitor.full:
            # What there is may not fill the window that holds the oldest group, behind which nothing goes.
            await self.training.request(at_most=1)
        self._name_wait(wait, still)
        return False

    async def _request(self) -> None:
        # Evaluations first: where they come among the requests then depends on steps alone.
        if self.state.published is not None:
            for version in self.evaluating.due():
                await self.evaluating.work(version, hurried=False)
        await self.training.request()

    def _why_drain(self, still: Stillness) -> Ending | None:
        if self.state.life.is_draining:
            return None
        ending = why_drain(self.state, self.run, exhausted=self.training.exhausted)
        stands_still = still.idle_s > still.limit_s(IDLE_LIMIT_S)
        if ending is None and self.state.published is not None and stands_still:
            return Ending("no_progress", f"nothing has moved for {still.idle_s:.0f} s")
        return ending

    def _name_wait(self, wait: CurrentWait, still: Stillness) -> None:
        if self.state.published is None:
            what, limit_s = "model weights of version 0 from the learner", START_LIMIT_S
        elif self.state.mixture is None:
            what, limit_s = "the mixture from the policy", START_LIMIT_S
        else:
            what, limit_s = "groups to end", IDLE_LIMIT_S
        starting = self.state.published is None or self.state.mixture is None
        if starting and still.idle_s > still.limit_s(limit_s):
            raise TooLong(f"dispatcher: waited {still.idle_s:.0f} s for {what}")
        if self.janitor.full and still.idle_s > SHOW_FULL_S:
            what, limit_s = (
                f"{what}; space in {', '.join(self.janitor.full)} may be lacking",
                FULL_LIMIT_S,
            )
        wait.name(what, limit_s)

    def _note(self) -> None:
        state = self.state
        self.health.note(
            step=state.step,
            version=state.version,
            requests=state.request_seq,
            outstanding=state.groups.outstanding,
            draining=state.life.is_draining,
            mixture=_shares(state),
        )


def _shares(state: State) -> Mapping[str, dict[str, float]]:
    """Target and realised share of requests by domain."""
    counters = state.counters
    total = sum(counters.requested.values()) if counters else 0
    if counters is None or not total:
        return {}
    return {
        domain: {
            "target": round(counters.target[domain], 4),
            "realised": round(counters.requested[domain] / total, 4),
        }
        for domain in counters.target
    }
