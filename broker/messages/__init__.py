"""The event kinds and nothing else: everything one Sluice process may say to another.

Messages are immutable and strictly typed; an unknown field or version is refused, not guessed.
Times are microseconds since the epoch (UTC), taken once by the publisher.
"""

from broker.messages.base import (
    Count,
    Event,
    Json,
    Message,
    Outcome,
    Probability,
    Purpose,
    Status,
    Text,
    Token,
    VerdictStatus,
)
from broker.messages.groups import (
    Annotation,
    ChatTurn,
    Generation,
    GroupAnnotated,
    GroupGenerated,
    GroupKey,
    GroupRequested,
    GroupVerified,
    MixtureCounters,
    Sample,
    Sampling,
    ShadowDecided,
    Verdict,
    VersionSpan,
)
from broker.messages.learner import (
    CheckpointWritten,
    DroppedGroup,
    PlannedGroup,
    StepCommitted,
    StepPlanned,
    WeightsPublished,
)
from broker.messages.run import (
    EvaluationFinished,
    EvaluationItem,
    Incident,
    LogPurged,
    MixtureShare,
    MixtureUpdated,
    ReaderAdvanced,
    RunDraining,
    RunEnded,
    RunStarted,
    SupervisionChanged,
    VerdictRevised,
)

EVENTS: dict[str, type[Event]] = {
    kind.KIND: kind
    for kind in (
        GroupRequested, GroupGenerated, GroupVerified, GroupAnnotated, ShadowDecided,
        RunStarted, RunDraining, RunEnded, MixtureUpdated, SupervisionChanged, VerdictRevised,
        EvaluationFinished, Incident, StepPlanned, StepCommitted, WeightsPublished,
        CheckpointWritten, ReaderAdvanced, LogPurged,
    )
}  # fmt: skip

__all__ = [
    "EVENTS",
    "Annotation",
    "ChatTurn",
    "CheckpointWritten",
    "Count",
    "DroppedGroup",
    "EvaluationFinished",
    "EvaluationItem",
    "Event",
    "Generation",
    "GroupAnnotated",
    "GroupGenerated",
    "GroupKey",
    "GroupRequested",
    "GroupVerified",
    "Incident",
    "Json",
    "LogPurged",
    "Message",
    "MixtureCounters",
    "MixtureShare",
    "MixtureUpdated",
    "Outcome",
    "PlannedGroup",
    "Probability",
    "Purpose",
    "ReaderAdvanced",
    "RunDraining",
    "RunEnded",
    "RunStarted",
    "Sample",
    "Sampling",
    "ShadowDecided",
    "Status",
    "StepCommitted",
    "StepPlanned",
    "SupervisionChanged",
    "Text",
    "Token",
    "Verdict",
    "VerdictRevised",
    "VerdictStatus",
    "VersionSpan",
    "WeightsPublished",
]
