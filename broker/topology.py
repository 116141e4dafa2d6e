"""Where each event kind goes: one table, kind -> log, subject, headers; role -> what it reads and how.

Five logs per run keep everything that counts; DEAD keeps copies of what could not be handled.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from broker.messages import (
    EvaluationFinished,
    Event,
    GroupAnnotated,
    GroupGenerated,
    GroupKey,
    GroupRequested,
    GroupVerified,
    Incident,
    ReaderAdvanced,
    ShadowDecided,
    SupervisionChanged,
    VerdictRevised,
)


class Log(StrEnum):
    REQUESTS = "REQUESTS"
    GENERATED = "GENERATED"
    VERIFIED = "VERIFIED"
    ANNOTATED = "ANNOTATED"
    LEDGER = "LEDGER"
    DEAD = "DEAD"


LOG_OF_KIND: dict[str, Log] = {
    "group_requested": Log.REQUESTS,
    "group_generated": Log.GENERATED,
    "group_verified": Log.VERIFIED,
    "group_annotated": Log.ANNOTATED,
}
"""Kinds not named here go to LEDGER."""

UNRETAINED_KINDS = ("shadow_decided",)
"""LEDGER kinds with a subject per group: nobody asks for the last of each, so a purge leaves none."""

LEDGER_KINDS = (
    "shadow_decided", "run_started", "run_draining", "run_ended", "mixture_updated", "supervision_changed",
    "verdict_revised", "evaluation_finished", "incident", "step_planned", "step_committed",
    "weights_published", "checkpoint_written", "reader_advanced", "log_purged",
)  # fmt: skip


def stream_name(run: str, log: Log) -> str:
    return f"{run}_{log}"


def log_of(kind: str) -> Log:
    return LOG_OF_KIND.get(kind, Log.LEDGER)


def log_subjects(run: str, log: Log) -> tuple[str, ...]:
    """The subjects that a log stores."""
    if log is Log.DEAD:
        return (f"sluice.{run}.dead.>",)
    if log is Log.LEDGER:
        return tuple(f"sluice.{run}.{kind}.>" for kind in LEDGER_KINDS)
    (kind,) = (kind for kind, of in LOG_OF_KIND.items() if of is log)
    return (f"sluice.{run}.{kind}.>",)


def group_subject(run: str, kind: str, group: GroupKey) -> str:
    """One subject per group and kind, so that a second copy is refused by the server."""
    return f"sluice.{run}.{kind}.{group.purpose}.{group.domain}.{group.group_id}"


def _last_token(event: Event) -> str:
    """What tells ledger events of one kind apart, so that each keeps its own last message."""
    match event:
        case ReaderAdvanced():
            return f"{event.reader}.{event.log}"
        case EvaluationFinished():
            return f"{event.benchmark}.v{event.version}"
        case Incident():
            return f"{event.role}.{event.kind}"
        case VerdictRevised():
            return event.group_id
        case SupervisionChanged():
            return event.field
        case _:
            return "all"


def subject(run: str, event: Event) -> str:
    match event:
        case GroupRequested() | GroupGenerated() | GroupVerified() | GroupAnnotated():
            return group_subject(run, event.KIND, event.group)
        case ShadowDecided():
            return f"sluice.{run}.{event.KIND}.{event.policy}.{event.group.group_id}"
        case _:
            return f"sluice.{run}.{event.KIND}.{_last_token(event)}"


def kind_subjects(run: str, kind: str, purpose: str | None = None) -> str:
    """Filter for all events of a kind, of one purpose if given."""
    return f"sluice.{run}.{kind}.{purpose}.>" if purpose else f"sluice.{run}.{kind}.>"


def is_unretained(subject: str) -> bool:
    """Whether a purge that keeps the last message of each subject does not keep that of this one."""
    return subject.split(".")[2] in UNRETAINED_KINDS


# --- headers ----------------------------------------------------------------------------------
# Headers repeat what others need without the body.

H_KIND, H_WRITER = "Sluice-Kind", "Sluice-Writer"
H_GROUP, H_PURPOSE, H_DOMAIN = "Sluice-Group", "Sluice-Purpose", "Sluice-Domain"
H_REQUEST_SEQ, H_BUNDLE, H_BUNDLE_SIZE = "Sluice-Request-Seq", "Sluice-Bundle", "Sluice-Bundle-Size"
H_OUTCOME, H_REASON, H_SCORE = "Sluice-Outcome", "Sluice-Reason", "Sluice-Score"
H_WINDOW, H_COHORT_END = "Sluice-Window", "Sluice-Cohort-End"
H_VERIFIED_SEQ, H_CUT = "Sluice-Verified-Seq", "Sluice-Cut"
H_OBJECT = "Sluice-Object"
"""Set by the bus: the body lies in the object store under this name."""


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() and ord(c) < 127 else "?" for c in text)[:200]


def headers(event: Event) -> dict[str, str]:
    found = {H_KIND: event.KIND, H_WRITER: event.writer_id}
    group = getattr(event, "group", None)
    if isinstance(group, GroupKey):
        found |= {
            H_GROUP: group.group_id,
            H_PURPOSE: group.purpose,
            H_DOMAIN: group.domain,
            H_REQUEST_SEQ: str(group.request_seq),
            H_BUNDLE: group.bundle,
            H_BUNDLE_SIZE: str(group.bundle_size),
        }
    match event:
        case GroupGenerated():
            found |= {H_OUTCOME: event.status, H_REASON: _one_line(event.reason)}
        case GroupVerified():
            found |= {H_OUTCOME: event.status, H_REASON: _one_line(event.reason)}
            scores = [v.score for v in event.verdicts if v.score is not None]
            if scores and len(scores) == len(event.verdicts):
                found[H_SCORE] = repr(sum(scores) / len(scores))
        case GroupAnnotated():
            found |= {
                H_OUTCOME: event.outcome,
                H_REASON: _one_line(event.reason),
                H_VERIFIED_SEQ: str(event.verified_seq),
            }
            if event.window is not None:
                found |= {H_WINDOW: str(event.window), H_CUT: str(event.cut)}
            if event.cohort_end:
                found[H_COHORT_END] = "1"
        case _:
            pass
    return found


def group_from_headers(found: Mapping[str, str]) -> GroupKey:
    """The group of a message whose body cannot be read. KeyError or ValueError when even that is missing."""
    return GroupKey.model_validate(
        {
            "group_id": found[H_GROUP],
            "purpose": found[H_PURPOSE],
            "domain": found[H_DOMAIN],
            "request_seq": int(found[H_REQUEST_SEQ]),
            "bundle": found[H_BUNDLE],
            "bundle_size": int(found[H_BUNDLE_SIZE]),
        }
    )


# --- readers ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reader:
    """A durable consumer: shared by all processes of a role, each message to one of them."""

    name: str
    log: Log
    purposes: tuple[str, ...]
    ack_wait_s: float
    """Redelivered after this long without a progress signal."""
    max_ack_pending: int = 4096

    def subjects(self, run: str) -> tuple[str, ...]:
        (kind,) = (kind for kind, of in LOG_OF_KIND.items() if of is self.log)
        return tuple(kind_subjects(run, kind, purpose) for purpose in self.purposes)


ROLLOUT_TRAIN = Reader("rollout", Log.REQUESTS, ("train",), ack_wait_s=30)
ROLLOUT_EVAL = Reader("rollout_eval", Log.REQUESTS, ("eval", "probe"), ack_wait_s=30)
VERIFIER = Reader("verifier", Log.GENERATED, ("train", "eval", "probe"), ack_wait_s=30)
READERS = (ROLLOUT_TRAIN, ROLLOUT_EVAL, VERIFIER)

MAX_DELIVERIES = 5
"""A message delivered more often than this fails its group and goes to DEAD."""
