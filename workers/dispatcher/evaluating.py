"""Asks for evaluations when they are due and publishes their results, complete or at their limit."""

import time

from broker.settings import RunSettings
from broker.telemetry import now_us
from workers.dispatcher.evaluation import conclude
from workers.dispatcher.outbox import Outbox
from workers.dispatcher.requests import RequestBuilder
from workers.dispatcher.settings import EvaluationSettings
from workers.dispatcher.state import State

BATCH = 200
"""Requests published at once."""


class Evaluating:
    def __init__(
        self,
        state: State,
        outbox: Outbox,
        builder: RequestBuilder,
        run: RunSettings,
        settings: EvaluationSettings,
    ) -> None:
        self._state = state
        self._outbox = outbox
        self._builder = builder
        self._run = run
        self._settings = settings
        self._samples = {
            domain: samples
            for domain, source in builder.sources.items()
            if (samples := source.evaluation())
        }
        self._since: dict[int, float] = {}
        """Version -> when this process first worked on it, on the monotonic clock."""

    def due(self) -> list[int]:
        """Versions to evaluate now, apart from the final one."""
        state = self._state
        versions = set(state.evaluations.begun())
        if state.step == 0:
            versions.add(0)
        every = self._settings.every
        if every is not None and 0 < state.step < self._run.steps:
            version = state.version_of_step.get(state.step // every * every)
            if version is not None:
                versions.add(version)
        return sorted(version for version in versions if not self.is_finished(version))

    @property
    def wait_s(self) -> float:
        return self._settings.wait_s

    def is_finished(self, version: int) -> bool:
        return all(self._state.evaluations.is_finished(version, name) for name in self._samples)

    def waits_for(self, version: int) -> str:
        names = [n for n in self._samples if not self._state.evaluations.is_finished(version, n)]
        return f"the evaluation of version {version} on {', '.join(names)}"

    async def work(self, version: int, *, hurried: bool) -> None:
        """Request what is not requested, conclude what is complete or over its limit.

        hurried: nobody wants to wait for what is missing.
        """
        since = self._since.setdefault(version, time.monotonic())
        over = hurried or time.monotonic() - since > self._settings.wait_s
        for benchmark, samples in self._samples.items():
            if self._state.evaluations.is_finished(version, benchmark):
                continue
            if not over:
                await self._request(version, benchmark, since)
            scores = self._state.evaluations.progress(version, benchmark).scores
            if over or len(scores) >= len(samples):
                await self._conclude(version, benchmark)

    async def _request(self, version: int, benchmark: str, since: float) -> None:
        requested = self._state.evaluations.progress(version, benchmark).requested
        items = [item for item in range(len(self._samples[benchmark])) if item not in requested]

        def give_up() -> bool:
            return self._state.life.hurried or time.monotonic() - since > self._settings.wait_s

        for start in range(0, len(items), BATCH):
            requests = self._builder.evaluation(
                version,
                benchmark,
                items[start : start + BATCH],
                request_seq=self._state.request_seq,
                at_us=now_us(),
            )
            if not await self._outbox.requests(requests, give_up=give_up):
                return

    async def _conclude(self, version: int, benchmark: str) -> None:
        finished = conclude(
            version,
            self._state.step_of_version.get(version, 0),
            benchmark,
            samples=self._samples[benchmark],
            scores=self._state.evaluations.progress(version, benchmark).scores,
            writer_id=self._outbox.writer_id,
            at_us=now_us(),
        )
        await self._outbox.ledger(finished, expect_subject=0)
        self._state.evaluations.finished(version, benchmark)
