"""What the learner says: steps written ahead and committed, model weights, checkpoints."""

from typing import ClassVar, Literal

from pydantic import FiniteFloat

from broker.messages.base import Count, Event, Message, Token


class PlannedGroup(Message):
    group_id: Token
    domain: Token
    stream_seq: Count
    """Sequence in ANNOTATED."""
    staleness: Count
    """Starting version minus the oldest version among the group's tokens."""


class DroppedGroup(Message):
    group_id: Token
    stream_seq: Count
    reason: str
    staleness: Count | None = None


class StepPlanned(Event):
    """Written ahead: after this the step is taken exactly so, however often the learner dies."""

    KIND: ClassVar[str] = "step_planned"

    step: Count
    """Equals the window's number; from 1, without gaps."""
    version: Count
    """The step starts from this version."""
    groups: tuple[PlannedGroup, ...]
    """In training order."""
    dropped: tuple[DroppedGroup, ...]
    cursor: Count
    """Sequence in ANNOTATED up to which everything is planned."""


class StepCommitted(Event):
    KIND: ClassVar[str] = "step_committed"

    step: Count
    status: Literal["trained", "skipped"]
    reason: str = ""
    version: Count
    """After the step; unchanged when skipped."""
    digest: str
    """sha256 of the model weights after the step."""
    dropped: tuple[DroppedGroup, ...] = ()
    """A skipped step ends its groups as dropped."""
    metrics: dict[str, FiniteFloat | None]


class WeightsPublished(Event):
    KIND: ClassVar[str] = "weights_published"

    version: Count
    step: Count
    digest: str
    uri: str
    """`object:NAME` in the run's object store, or `file:PATH`."""
    bytes: Count


class CheckpointWritten(Event):
    KIND: ClassVar[str] = "checkpoint_written"

    step: Count
    version: Count
    uri: str
    digest: str
    """sha256 of the model weights inside."""
    cursor: Count
    """Sequence in ANNOTATED up to which everything is trained into it."""
