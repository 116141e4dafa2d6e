"""Continuous batching: groups enter as rows fall free, every step gives each row one token.

Synchronous and single-threaded; the engine runs it in a thread of its own. A prompt is computed once a
group, but for its last token: that one is fed to each row as its first decoding step, so that all
sampling happens in one place and no logits of a prompt are ever computed.
"""

from collections import deque
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel

from broker.messages import VersionSpan
from broker.telemetry import now_us
from workers.rollout.attention import Decode, Prefill
from workers.rollout.batch import Batch, NewRow
from workers.rollout.engine import Answer, Job, Refused, Result
from workers.rollout.kv_cache import KvCache
from workers.rollout.limits import Limits
from workers.rollout.model import cache_shape
from workers.rollout.signals import Recorder

PREFILL_TOKENS = 8192
"""Prompt tokens, padding included, that go through the model at once."""


@dataclass(eq=False)
class Ticket:
    """A job in the engine."""

    job: Job
    future: "Future[Result]" = field(default_factory=Future)
    answers: dict[int, Answer] = field(default_factory=dict)
    started_step: int = 0
    started_at_us: int = 0


class Decoder:
    def __init__(
        self,
        model: PreTrainedModel,
        end_tokens: frozenset[int],
        *,
        max_rows: int,
        signals: Collection[str] = (),
    ) -> None:
        self.model = model
        self.version: int | None = None
        self.sampled = 0
        """Tokens since the start."""
        self._max_rows = max_rows
        self._device, self.limits = model.device, Limits.of(model.config)
        self._cache = KvCache(
            cache_shape(model.config),
            device=model.device,
            dtype=model.dtype,
            whole_blocks=model.device.type == "cpu",
        )
        ends = torch.zeros(self.limits.vocabulary, dtype=torch.bool, device=self._device)
        ends[[token for token in end_tokens if token < self.limits.vocabulary]] = True
        self._batch = Batch(self._cache, ends, device=self._device)
        self._recorder = Recorder(signals, device=self._device) if signals else None
        self._waiting: deque[Ticket] = deque()
        self._owners: list[tuple[Ticket, int]] = []
        """Of each row in use: its job and the answer's index."""
        self._step = 0
        self._versions: list[tuple[int, int]] = []
        """(first step, version), as far back as a row in use began."""

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._owners)

    @property
    def rows(self) -> int:
        return self._batch.count

    def submit(self, ticket: Ticket) -> None:
        self._waiting.append(ticket)

    def withdraw(self, ticket: Ticket) -> None:
        """Forget a job, wherever it is."""
        if ticket in self._waiting:
            self._waiting.remove(ticket)
        self._remove([row for row, (owner, _) in enumerate(self._owners) if owner is ticket])

    def withdraw_all(self) -> list[Ticket]:
        """Forget everything, and whatever the cache may hold; the jobs that were open."""
        tickets = list(dict.fromkeys([owner for owner, _ in self._owners] + list(self._waiting)))
        self._waiting.clear()
        self._cache.wipe(range(self._cache.rows))
        self._remove(range(self._batch.count))
        return tickets

    def set_version(self, version: int) -> None:
        """Tokens from here on are sampled by other weights."""
        self.version = version
        oldest = min((ticket.started_step for ticket, _ in self._owners), default=self._step)
        begun_later = [i for i, (step, _) in enumerate(self._versions) if step > oldest]
        keep_from = max((begun_later[0] if begun_later else len(self._versions)) - 1, 0)
        self._versions = [*self._versions[keep_from:], (self._step, version)]

    def advance(self) -> list[tuple[Ticket, Result]]:
        """Admit what fits and sample one token for each row; the jobs that are done."""
        self._admit()
        batch = self._batch
        if batch.count == 0:
            return []
        self._cache.reserve(batch.count, batch.length)
        positions = batch.positions.clone()
        recorder = self._recorder
        options = {"output_hidden_states": True} if recorder and recorder.hidden else {}
        found = self.model(
            input_ids=batch.tokens,
            position_ids=positions[:, None],
            use_cache=False,
            rows=Decode(self._cache, positions, batch.runs()),
            **options,
        )
        logits = found.logits[:, -1]
        if recorder:
            recorder.record(batch.sampled, logits, batch.temperature, found.hidden_states)
        ended = batch.advance(logits)
        self._step += 1
        self.sampled += batch.count
        return self._finish(ended) if ended else []

    # --- entering ---

    def _admit(self) -> None:
        """Whole groups, first come first served; one larger than max_rows runs alone."""
        room = self._max_rows - self._batch.count
        entering: list[Ticket] = []
        for ticket in self._waiting:
            size = len(ticket.job.seeds)
            if size > room and (entering or self._batch.count):
                break
            room -= size
            entering.append(ticket)
        for tickets in _within_budget(entering):
            self._prefill(tickets)
            # Only now: should the model break, every job is still in a place where it is found.
            for _ in tickets:
                self._waiting.popleft()

    def _prefill(self, tickets: list[Ticket]) -> None:
        first = self._batch.count
        sizes = [len(ticket.job.seeds) for ticket in tickets]
        length = max(len(ticket.job.prompt_ids) for ticket in tickets) - 1
        self._cache.reserve(first + sum(sizes), length + 1)
        if length > 0:
            prompts = torch.zeros((len(tickets), length), dtype=torch.int64)
            for row, ticket in zip(prompts, tickets, strict=True):
                known = ticket.job.prompt_ids[:-1]
                row[: len(known)] = torch.tensor(known, dtype=torch.int64)
            copies = torch.tensor(sizes, device=self._device)
            self.model.base_model(
                input_ids=prompts.to(self._device),
                position_ids=torch.arange(length, device=self._device)[None],
                use_cache=False,
                rows=Prefill(self._cache, first, copies, length),
            )
        self._batch.add([row for ticket in tickets for row in _new_rows(ticket.job)])
        if self._recorder:
            tokens = max(ticket.job.sampling.max_tokens for ticket in tickets)
            self._recorder.begin(first, self._batch.count, tokens)
        for ticket in tickets:
            ticket.started_step, ticket.started_at_us = self._step, now_us()
            self._owners += [(ticket, index) for index in range(len(ticket.job.seeds))]

    # --- leaving ---

    def _finish(self, ended: list[int]) -> list[tuple[Ticket, Result]]:
        done: dict[Ticket, Result] = {}
        for row in ended:
            ticket, index = self._owners[row]
            answer = self._answer(row, ticket)
            if answer is None:
                token, version = self._step - ticket.started_step - 1, self.version
                done[ticket] = Refused(
                    f"logits of token {token} of answer {index} are not finite at version {version}"
                )
                continue
            ticket.answers[index] = answer
            if len(ticket.answers) == len(ticket.job.seeds):
                done[ticket] = tuple(answer for _, answer in sorted(ticket.answers.items()))
        refused = {ticket for ticket, result in done.items() if isinstance(result, Refused)}
        stray = [row for row, (owner, _) in enumerate(self._owners) if owner in refused]
        self._cache.wipe(stray)
        self._remove(sorted({*ended, *stray}))
        return list(done.items())

    def _answer(self, row: int, ticket: Ticket) -> Answer | None:
        """None when the last log-probability is not finite: the row ended for that reason."""
        tokens = self._step - ticket.started_step
        ids, logprobs = self._batch.taken(row, tokens)
        if not bool(abs(logprobs[-1]) < float("inf")):
            return None
        return Answer(
            token_ids=ids,
            logprobs=logprobs,
            finish_reason="stop" if self._batch.ends(int(ids[-1])) else "length",
            spans=tuple(self._spans(ticket.started_step, tokens)),
            started_at_us=ticket.started_at_us,
            finished_at_us=now_us(),
            signals=self._recorder.taken(row, tokens) if self._recorder else {},
        )

    def _spans(self, started_step: int, tokens: int) -> Iterator[VersionSpan]:
        """Token t was sampled in step `started_step + t`, by the weights in force then."""
        for i, (step, version) in enumerate(self._versions):
            until = self._versions[i + 1][0] if i + 1 < len(self._versions) else self._step
            first = max(step - started_step, 0)
            end = min(until - started_step, tokens)
            if first < end:
                yield VersionSpan(version=version, first=first, end=end)

    def _remove(self, rows: list[int] | range) -> None:
        moved = self._batch.remove(rows)
        for source, target in moved:
            self._owners[target] = self._owners[source]
        if self._recorder:
            self._recorder.move(moved)
        del self._owners[self._batch.count :]


def _new_rows(job: Job) -> Iterator[NewRow]:
    last = len(job.prompt_ids) - 1
    for seed in job.seeds:
        yield NewRow(int(job.prompt_ids[last]), last, seed, job.sampling)


def _within_budget(tickets: list[Ticket]) -> Iterator[list[Ticket]]:
    """Consecutive jobs whose padded prompts fit the prefill budget; one over it goes alone."""
    part: list[Ticket] = []
    longest = 0
    for ticket in tickets:
        longest = max(longest, len(ticket.job.prompt_ids))
        if part and longest * (len(part) + 1) > PREFILL_TOKENS:
            yield part
            part, longest = [], len(ticket.job.prompt_ids)
        part.append(ticket)
    if part:
        yield part
