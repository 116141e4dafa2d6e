"""What is said about a run as a whole, its supervision and its space."""

from typing import ClassVar, Literal

from pydantic import FiniteFloat

from broker.messages.base import Count, Event, Json, Message, Probability, Text, Token
from broker.messages.groups import Verdict


class RunStarted(Event):
    KIND: ClassVar[str] = "run_started"

    name: str
    config: str
    """The whole configuration as JSON, secrets left out."""
    config_sha256: str
    seed: int
    versions: dict[str, str]
    """Library versions."""
    resumed: bool = False


class RunDraining(Event):
    KIND: ClassVar[str] = "run_draining"

    reason: str
    open_groups: tuple[Token, ...]


class RunEnded(Event):
    KIND: ClassVar[str] = "run_ended"

    reason: str
    status: Literal["finished", "stopped", "no_progress", "failed"]
    last_sequences: dict[str, int]
    """Per log, the last sequence that counts."""


class MixtureShare(Message):
    """One domain's row of a mixture update. Counts are cumulative over the run's train groups."""

    domain: Token
    target: Probability
    requested: Count
    """Of the requests up to `request_seq`."""
    generated: Count
    """Verified without failure up to `cut`."""
    admitted: Count
    """In windows up to `window`."""
    trained: Count
    """In steps planned up to `step`."""
    reward_mean: FiniteFloat | None
    abs_advantage_mean: FiniteFloat | None
    slope: FiniteFloat | None


class MixtureUpdated(Event):
    KIND: ClassVar[str] = "mixture_updated"

    update_no: Count
    """0 before the first request."""
    mixer: str
    window: Count
    step: Count
    request_seq: Count
    cut: Count
    domains: tuple[MixtureShare, ...]
    reason: str


class SupervisionChanged(Event):
    """A field of a sample's supervision state got a new value."""

    KIND: ClassVar[str] = "supervision_changed"

    sample_key: str
    step: Count | None
    method: str
    lifetime: Literal["step", "run", "dataset"]
    field: Literal[
        "labeled", "target", "target_source", "confidence", "status", "visits", "solve_rate"
    ]
    old: str | None
    new: str | None
    evidence: Json
    actor: str


class VerdictRevised(Event):
    KIND: ClassVar[str] = "verdict_revised"

    group_id: Token
    verdict: Verdict


class EvaluationItem(Message):
    sample_key: str
    group_id: Token
    domain: Token
    score: Probability | None
    """None when it could not be graded."""


class EvaluationFinished(Event):
    KIND: ClassVar[str] = "evaluation_finished"

    version: Count
    step: Count
    benchmark: Token
    items: Count
    """Items asked for."""
    score: Probability | None
    """Mean over the items; None when one is missing, never 0 for it."""
    missing: tuple[str, ...]
    scores: tuple[EvaluationItem, ...]


class Incident(Event):
    """Something a person may have to know. `stop_requested` is how a command asks for draining."""

    KIND: ClassVar[str] = "incident"

    kind: Token
    role: Token
    detail: Text
    group_id: Token | None = None


class ReaderAdvanced(Event):
    """A reader has made everything up to `sequence` durable on its side."""

    KIND: ClassVar[str] = "reader_advanced"

    reader: Token
    log: Token
    sequence: Count
    snapshot_digest: str | None = None


class LogPurged(Event):
    KIND: ClassVar[str] = "log_purged"

    floor: Count
    """Every request up to this request_seq has ended, and its retry, if due, is requested."""
