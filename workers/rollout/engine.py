"""The seam between the rollout worker and what generates: jobs in, answers out, weights swapped in flight.

Every engine keeps: one result per job, in the order of the jobs; log-probabilities of the distribution
that was sampled from; a version for every token; a row's tokens depend on its seed, its prompt and the
weights, not on its neighbours; a failed load leaves the old weights in force.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from broker.errors import SluiceError
from broker.messages import Sampling, VersionSpan
from broker.offer import Offer


class EngineError(SluiceError):
    """The engine broke while it worked on a job; the same job may succeed later."""


class BadWeights(SluiceError):
    """A file of model weights does not fit the model; the message names file and tensor."""


class Untaken(SluiceError):
    """The learner did not send weights, and nothing has changed: they are to be had where they are stored."""


@dataclass(frozen=True)
class Job:
    """One group: a prompt to answer once per seed."""

    name: str
    """For messages; the group's id."""
    prompt_ids: np.ndarray
    """int32, shape (P,)."""
    seeds: tuple[int, ...]
    """One per answer, 0..2**63-1."""
    sampling: Sampling


@dataclass(frozen=True)
class Answer:
    """One sampled answer."""

    token_ids: np.ndarray
    """int32, shape (T,); the last is an end token iff finish_reason is stop."""
    logprobs: np.ndarray
    """float32, shape (T,), natural log, of the distribution sampled from (greedy: of temperature 1)."""
    finish_reason: Literal["stop", "length"]
    spans: tuple[VersionSpan, ...]
    """Contiguous from 0 to T."""
    started_at_us: int
    finished_at_us: int
    signals: dict[str, np.ndarray] = field(default_factory=dict)
    """float32, by name; those that the engine was made to record."""


@dataclass(frozen=True)
class Refused:
    """No answers, and none to be had by trying again."""

    reason: str


Result = tuple[Answer, ...] | Refused
"""All answers of a job in the order of its seeds, or none."""


class Engine(Protocol):
    name: str

    @property
    def version(self) -> int | None:
        """Of the weights in force; None before the first load."""
        ...

    @property
    def rows(self) -> int:
        """Answers being decoded at the moment."""
        ...

    @property
    def sampled(self) -> int:
        """Tokens since the engine was made."""
        ...

    async def generate(self, jobs: Sequence[Job]) -> list[Result]:
        """Answer jobs that enter the engine together, in this order.

        Raises EngineError when the engine broke; cancelling the call withdraws its jobs.
        """
        ...

    async def load(self, weights: Path, version: int) -> None:
        """Put other weights in force between two tokens, without aborting anything.

        What was computed for earlier tokens is kept, as the peers do: an answer that spans a load is
        sampled by the new weights given the old weights' keys and values. Raises BadWeights.
        """
        ...

    async def close(self) -> None:
        """Withdraw everything and free the engine; returns within seconds."""
        ...


@runtime_checkable
class Receiver(Protocol):
    """An engine that the learner itself can send weights to."""

    async def receive(self, offer: Offer, version: int, digest: str) -> None:
        """As `Engine.load`, from the learner's memory. Raises Untaken, or EngineError when it broke."""
        ...
