"""The stages behind the dispatcher, scripted: answers every request as a test says, over any bus.

Plays rollout and verifier for evaluations, the policy's windows, and a learner that commits each
window at once. It goes on while dispatchers come and go.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from broker.bus import Bus, Stored
from broker.memory import MemoryBus
from broker.memory_state import MemoryServer
from broker.messages import (
    CheckpointWritten,
    DroppedGroup,
    Event,
    GroupAnnotated,
    GroupRequested,
    Incident,
    MixtureShare,
    MixtureUpdated,
    PlannedGroup,
    ReaderAdvanced,
    RunDraining,
    RunEnded,
    RunStarted,
    StepCommitted,
    StepPlanned,
    WeightsPublished,
)
from broker.settings import RunSettings
from broker.telemetry import Health
from broker.topology import Log
from learner.settings import TinyModel
from learner.tiny import write_model_folder
from tests.builders import AT_US, a_verified, an_annotated
from workers.dispatcher import worker
from workers.dispatcher.settings import (
    EvaluationSettings,
    PromptSettings,
    SamplingSettings,
    SourceSettings,
)

WORLD = "world@host:1:1"
CHARACTERS = "0123456789+=abcdefghij>?:#"


def a_tokenizer_folder(folder: Path, characters: str = CHARACTERS) -> Path:
    write_model_folder(TinyModel(characters=characters, hidden=16, heads=2, kv_heads=2), folder)
    return folder


def a_run(**changes: object) -> RunSettings:
    fields = {"steps": 3, "groups_per_step": 4, "group_size": 2, "drain_wait_s": 1.0}
    return RunSettings.model_validate(fields | changes)


def two_sources(**changes: object) -> tuple[SourceSettings, ...]:
    return tuple(
        SourceSettings.model_validate(
            {"domain": name, "generator": name, "options": {"items": 200}} | changes
        )
        for name in ("addition", "ordering")
    )


@dataclass
class Start:
    """What a dispatcher is started with."""

    tokenizer: Path
    run: RunSettings
    sources: tuple[SourceSettings, ...]
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    health: Health = field(default_factory=lambda: Health("dispatcher"))
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    config: dict[str, object] = field(default_factory=lambda: {"run": {"steps": 3}})

    async def dispatch(self, bus: Bus, *, resume: bool = False) -> None:
        text = json.dumps(self.config)
        await worker.run(
            bus,
            run=self.run,
            sources=self.sources,
            prompt=PromptSettings(max_tokens=64),
            sampling=SamplingSettings(max_tokens=8),
            evaluation=self.evaluation,
            tokenizer_dir=self.tokenizer,
            config_json=text,
            config_sha256=text,
            versions={"python": "3"},
            health=self.health,
            stop=self.stop,
            resume=resume,
        )


class Died(Exception):
    """The process is gone."""


class MortalBus(MemoryBus):
    """A dispatcher's bus that dies with its n-th publication, just before or just after it is stored."""

    def __init__(self, server: MemoryServer, run: str, *, dies_at: int, stored: bool) -> None:
        super().__init__(server, run)
        self._left = dies_at
        self._stored = stored

    async def publish(
        self, event: Event, *, expect_subject: int | None = None, expect_log: int | None = None
    ) -> int:
        self._live_on(stored=False)
        sequence = await super().publish(
            event, expect_subject=expect_subject, expect_log=expect_log
        )
        self._live_on(stored=True)
        return sequence

    async def publish_batch(self, events: Sequence[Event], *, expect_log: int | None = None) -> int:
        self._live_on(stored=False)
        sequence = await super().publish_batch(events, expect_log=expect_log)
        self._live_on(stored=True)
        return sequence

    def _live_on(self, *, stored: bool) -> None:
        self._left -= stored
        if self._left <= (0 if stored else 1) and stored == self._stored:
            raise Died


class FillingBus(MemoryBus):
    """A dispatcher's bus whose server is full in the middle of its n-th batch, of which it dies."""

    def __init__(self, server: MemoryServer, run: str, *, batches: int, kept: int) -> None:
        super().__init__(server, run)
        self._batches = batches
        self._kept = kept

    async def publish_batch(self, events: Sequence[Event], *, expect_log: int | None = None) -> int:
        self._batches -= 1
        if self._batches > 0:
            return await super().publish_batch(events, expect_log=expect_log)
        await super().publish_batch(events[: self._kept], expect_log=expect_log)
        raise Died


Script = Callable[[GroupRequested], str]
"""What becomes of a request: admit, fail, stale, silence, or the reason of a drop."""


@dataclass
class World:
    """The other stages. `script` decides about train groups, `score` about evaluation items."""

    bus: Bus
    run: RunSettings
    script: Script = lambda request: "admit"
    score: Callable[[GroupRequested], float | None] = lambda request: 1.0
    signal: float = 1.0
    commits: bool = True
    """Whether the learner takes its steps."""
    window: list[GroupRequested] = field(default_factory=list)
    cohort: list[GroupRequested] = field(default_factory=list)
    stale: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)
    """Groups that were asked for."""
    decided: set[str] = field(default_factory=set)
    listed: set[str] | None = None
    """While draining: open groups that were not seen yet."""
    drain_over_at: float = 0.0
    windows: int = 0
    version: int = 0

    async def begin(self, domains: tuple[str, ...] = ("addition", "ordering")) -> None:
        """The learner's and the policy's first words."""
        await self._tell(self._mixture(domains, update_no=0))
        await self._tell(self._weights())

    async def play(self) -> None:
        requests = await self.bus.cursor(Log.REQUESTS, 0)
        ledger = await self.bus.cursor(Log.LEDGER, 0)
        while True:
            asked = await requests.read(100, 0.01)
            for stored in await ledger.read(100, 0.0):
                await self._hear(stored.event())
            for stored in asked:
                request = stored.event()
                assert isinstance(request, GroupRequested)
                await self._answer(request)
            if self.listed is not None and (
                not self.listed or asyncio.get_running_loop().time() > self.drain_over_at
            ):
                await self._close_window()
                self.listed = set()

    async def _hear(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self.listed = None
        if isinstance(event, RunDraining):
            self.listed = set(event.open_groups) - self.decided
            self.drain_over_at = asyncio.get_running_loop().time() + self.run.drain_wait_s

    async def _answer(self, request: GroupRequested) -> None:
        self.seen.add(request.group.group_id)
        if request.group.purpose != "train":
            await self._measure(request)
        elif request.cohort is None:
            await self._decide([request])
        else:
            self.cohort = [r for r in self.cohort if r.cohort == request.cohort] + [request]
            if len(self.cohort) == request.cohort_size:
                cohort, self.cohort = self.cohort, []
                await self._decide(cohort, cohort_end=True)

    async def _measure(self, request: GroupRequested) -> None:
        score = self.score(request)
        if score is None:
            failed = {"status": "failed", "generations": (), "verdicts": (), "reason": "broken"}
            await self._tell(a_verified(request, (), **failed))
        else:
            await self._tell(a_verified(request, (score,)))

    async def _decide(self, requests: list[GroupRequested], *, cohort_end: bool = False) -> None:
        said: list[GroupAnnotated] = []
        for request in requests:
            group_id = request.group.group_id
            late = self.listed is not None and group_id not in self.listed
            what = "run_ended" if late else self.script(request)
            if what != "silence":
                self.decided.add(group_id)
                (self.listed or set()).discard(group_id)
            if what in ("admit", "stale"):
                self.window.append(request)
                if what == "stale":
                    self.stale.add(request.group.group_id)
            elif what != "silence":
                said.append(self._dropped(request, what))
        closes = len(self.window) >= self.run.groups_per_step
        if closes:
            said += self._windowed()
        if said:
            said[-1] = said[-1].model_copy(update={"cohort_end": cohort_end})
            await self.bus.publish_batch(said)
        if closes and self.commits:
            await self._train(said)

    async def _close_window(self) -> None:
        if self.window:
            said = self._windowed()
            await self.bus.publish_batch(said)
            await self._train(said)

    def _dropped(self, request: GroupRequested, reason: str) -> GroupAnnotated:
        outcome = "failed" if reason == "fail" else "dropped"
        nothing = {"window": None, "window_size": None, "window_index": None, "cut": None}
        annotated = an_annotated(request, (), **nothing)
        return annotated.model_copy(
            update={"outcome": outcome, "reason": reason, "generations": (), "annotations": ()}
        )

    def _windowed(self) -> list[GroupAnnotated]:
        self.windows += 1
        groups, self.window = self.window, []
        return [
            an_annotated(g, window=self.windows, window_size=len(groups), window_index=i)
            for i, g in enumerate(groups)
        ]

    async def _train(self, said: list[GroupAnnotated]) -> None:
        admitted = [a for a in said if a.outcome == "admitted"]
        fresh = [a for a in admitted if a.group.group_id not in self.stale]
        old = [a for a in admitted if a.group.group_id in self.stale]
        step, trained = self.windows, bool(fresh)
        await self._tell(
            StepPlanned(
                writer_id=WORLD,
                at_us=AT_US,
                step=step,
                version=self.version,
                groups=tuple(
                    PlannedGroup(
                        group_id=a.group.group_id, domain=a.group.domain, stream_seq=1, staleness=0
                    )
                    for a in fresh
                ),
                dropped=tuple(
                    DroppedGroup(group_id=a.group.group_id, stream_seq=1, reason="stale")
                    for a in old
                ),
                cursor=1,
            )
        )
        self.version += trained
        await self._tell(
            StepCommitted(
                writer_id=WORLD,
                at_us=AT_US,
                step=step,
                status="trained" if trained else "skipped",
                version=self.version,
                digest="d",
                metrics={"signal_groups": self.signal},
            )
        )
        if trained:
            await self._tell(self._weights())

    def _weights(self) -> WeightsPublished:
        return WeightsPublished(
            writer_id=WORLD, at_us=AT_US, version=self.version, step=self.windows,
            digest="d", uri="file:none", bytes=0,
        )  # fmt: skip

    def _mixture(self, domains: tuple[str, ...], *, update_no: int) -> MixtureUpdated:
        nothing = {"reward_mean": None, "abs_advantage_mean": None, "slope": None}
        counts = dict.fromkeys(("requested", "generated", "admitted", "trained"), 0)
        shares = tuple(
            MixtureShare.model_validate(
                {"domain": d, "target": 1 / len(domains)} | counts | nothing
            )
            for d in domains
        )
        return MixtureUpdated(
            writer_id=WORLD, at_us=AT_US, update_no=update_no, mixer="static", window=0, step=0,
            request_seq=0, cut=0, domains=shares, reason="start",
        )  # fmt: skip

    async def checkpoint(self) -> None:
        """Learner, policy and recorder are done with everything up to now."""
        await self._tell(
            CheckpointWritten(
                writer_id=WORLD, at_us=AT_US, step=self.windows, version=self.version,
                uri="none", digest="d", cursor=(await self.bus.state(Log.ANNOTATED)).last,
            )
        )  # fmt: skip
        for reader in ("learner", "policy", "recorder"):
            for log in Log:
                sequence = (await self.bus.state(log)).last
                await self._tell(
                    ReaderAdvanced(
                        writer_id=WORLD, at_us=AT_US, reader=reader, log=log, sequence=sequence
                    )
                )

    async def _tell(self, event: Event) -> None:
        await self.bus.publish(event)


@asynccontextmanager
async def playing(world: World) -> AsyncIterator[None]:
    """The world goes on while the block runs."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(world.play())
        yield
        task.cancel()


async def until(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - the world has no event for everything
            await asyncio.sleep(0.01)


def a_world(run: RunSettings, server: MemoryServer | None = None, **changes: object) -> World:
    return World(MemoryBus(server or MemoryServer(), "r"), run, **changes)  # pyright: ignore[reportArgumentType]


async def read_all(bus: Bus, log: Log) -> list[Event]:
    """Everything in a log now."""
    end, found = await bus.state(log), list[Stored]()
    cursor = await bus.cursor(log, 0)
    while end.messages and cursor.position < end.last:
        found += await cursor.read(1000, 5.0)
    await cursor.close()
    return [stored.event() for stored in found]


async def train_requests(bus: Bus) -> list[GroupRequested]:
    found = await read_all(bus, Log.REQUESTS)
    return [r for r in found if isinstance(r, GroupRequested) and r.group.purpose == "train"]


async def the_end(bus: Bus) -> RunEnded:
    ends = [e for e in await read_all(bus, Log.LEDGER) if isinstance(e, RunEnded)]
    assert ends, "the run has not ended"
    return ends[-1]


async def ask_to_stop(bus: Bus) -> None:
    await bus.publish(
        Incident(
            writer_id="cli@host:1:1", at_us=AT_US, kind="stop_requested", role="cli", detail="test"
        )
    )
