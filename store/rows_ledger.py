"""Rows of the LEDGER: the run, its steps, its mixture, what changed supervision, evaluations, incidents."""

import math
from collections.abc import Iterable

import orjson

from broker.messages import (
    CheckpointWritten,
    DroppedGroup,
    EvaluationFinished,
    Event,
    Incident,
    LogPurged,
    MixtureUpdated,
    ReaderAdvanced,
    RunDraining,
    RunEnded,
    RunStarted,
    StepCommitted,
    StepPlanned,
    SupervisionChanged,
    VerdictRevised,
    WeightsPublished,
)
from store.clean import moment
from store.row import End, Row, Values
from store.rows_groups import verdict

METRICS = (
    "staleness_mean", "loss", "grad_norm", "entropy", "kl", "ratio_mean", "clip_fraction", "reward_mean",
)  # fmt: skip
"""Metrics of a step that have a column of their own name; all of them are in learner_step.metrics."""
COUNTS = ("groups", "generations", "tokens", "staleness_max")


def rows_of(run_id: str, sequence: int, event: Event) -> list[Row]:  # noqa: C901 - a table of kinds
    match event:
        case RunStarted():
            return [Row("run", _run_started(run_id, sequence, event))]
        case RunDraining():
            values = {"status": "draining", "reason": event.reason}
            return [Row("run", {"run_id": run_id, "last_event_id": sequence} | values)]
        case RunEnded():
            return [Row("run_end", _run_end(run_id, sequence, event))]
        case StepPlanned():
            return _planned(run_id, sequence, event)
        case StepCommitted():
            return _committed(run_id, sequence, event)
        case MixtureUpdated():
            return _mixture(run_id, sequence, event)
        case SupervisionChanged():
            return [Row("supervision_event", _supervision(run_id, sequence, event))]
        case VerdictRevised():
            return [verdict(run_id, event.group_id, sequence, event.at_us, event.verdict)]
        case WeightsPublished():
            return [Row("weights", _weights(run_id, sequence, event))]
        case CheckpointWritten():
            return [Row("checkpoint", _checkpoint(run_id, sequence, event))]
        case EvaluationFinished():
            return _evaluation(run_id, sequence, event)
        case Incident():
            return [Row("incident", _incident(run_id, sequence, event))]
        case ReaderAdvanced() | LogPurged():
            return []  # about the logs themselves, which the store outlives
        case _:
            raise ValueError(f"kind {event.KIND}: no table holds it")


def _run_started(run_id: str, sequence: int, event: RunStarted) -> Values:
    try:
        config = orjson.loads(event.config)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"run_started.config is not JSON: {error}") from error
    return {
        "run_id": run_id,
        "name": event.name,
        "config": config,
        "config_sha256": event.config_sha256,
        "seed": event.seed,
        "versions": event.versions,
        "started_at": moment(event.at_us),
        "status": "running",
        "reason": "",
        "last_event_id": sequence,
    }


def _run_end(run_id: str, sequence: int, event: RunEnded) -> Values:
    return {
        "run_id": run_id,
        "event_id": sequence,
        "status": event.status,
        "reason": event.reason,
        "last_sequences": event.last_sequences,
        "ended_at": moment(event.at_us),
        "closed": False,
    }


def _planned(run_id: str, sequence: int, event: StepPlanned) -> list[Row]:
    step = {
        "run_id": run_id,
        "step": event.step,
        "status": "planned",
        "start_version": event.version,
        "planned_groups": len(event.groups),
        "dropped_groups": len(event.dropped),
        "planned_at": moment(event.at_us),
        "planned_seq": sequence,
    }
    members = (
        {
            "run_id": run_id,
            "step": event.step,
            "group_id": group.group_id,
            "position": position,
            "staleness": group.staleness,
            "stream_seq": group.stream_seq,
        }
        for position, group in enumerate(event.groups)
    )
    return [
        Row("learner_step", step),
        *(Row("batch_member", values) for values in members),
        *_drops(run_id, event.step, event.at_us, event.dropped),
    ]


def _committed(run_id: str, sequence: int, event: StepCommitted) -> list[Row]:
    counts = {name: event.metrics.get(name) for name in COUNTS}
    step = {
        "run_id": run_id,
        "step": event.step,
        "status": event.status,
        "reason": event.reason,
        "weights_version": event.version,
        **{name: event.metrics.get(name) for name in METRICS},
        **{name: None if value is None else round(value) for name, value in counts.items()},
        "metrics": event.metrics,
        "digest": event.digest,
        "committed_at": moment(event.at_us),
        "committed_seq": sequence,
    }
    return [Row("learner_step", step), *_drops(run_id, event.step, event.at_us, event.dropped)]


def _drops(run_id: str, step: int, at_us: int, dropped: Iterable[DroppedGroup]) -> list[Row]:
    at = moment(at_us)
    return [
        Row(
            "prompt_group",
            {
                "run_id": run_id,
                "group_id": group.group_id,
                "state": "dropped",
                "drop_reason": group.reason,
                "dropped_step": step,
                "dropped_staleness": group.staleness,
                "terminal_at": at,
                "ends": End.DROPPED_BY_STEP,
            },
        )
        for group in dropped
    ]


def _mixture(run_id: str, sequence: int, event: MixtureUpdated) -> list[Row]:
    update = {
        "run_id": run_id,
        "update_no": event.update_no,
        "step": event.step,
        "mixer": event.mixer,
        "reason": event.reason,
        "request_seq": event.request_seq,
        "cut": event.cut,
        "window_no": event.window,
        "updated_at": moment(event.at_us),
        "event_id": sequence,
    }
    rows = []
    for share in event.domains:
        values = share.model_dump()
        values["target_share"] = values.pop("target")
        rows.append(Row("mixture", update | values))
    return rows


def _supervision(run_id: str, sequence: int, event: SupervisionChanged) -> Values:
    for name, value in (("old", event.old), ("new", event.new)):
        _check_state(f"supervision_changed.{event.field}.{name}", event.field, value)
    return {
        "event_id": sequence,
        "run_id": run_id,
        "sample_key": event.sample_key,
        "recorded_at": moment(event.at_us),
        "step": event.step,
        "method": event.method,
        "lifetime": event.lifetime,
        "field": event.field,
        "old": event.old,
        "new": event.new,
        "evidence": event.evidence,
        "actor": event.actor,
    }


def _check_state(where: str, field: str, value: str | None) -> None:
    """The fold casts these texts to the types of supervision_state."""
    if value is None:
        return
    match field:
        case "labeled":
            if value not in ("true", "false"):
                raise ValueError(f"{where} is {value!r}: expected true or false")
        case "visits":
            if not (value.isascii() and value.isdigit() and len(value) < 19):
                raise ValueError(f"{where} is {value!r}: expected a count")
        case "confidence" | "solve_rate":
            number = float(value) if value.isascii() else math.nan
            if not 0.0 <= number <= 1.0 or "_" in value:
                raise ValueError(f"{where} is {value!r}: expected a number in 0..1")
        case _:
            pass


def _weights(run_id: str, sequence: int, event: WeightsPublished) -> Values:
    return {
        "run_id": run_id,
        "version": event.version,
        "step": event.step,
        "digest": event.digest,
        "uri": event.uri,
        "bytes": event.bytes,
        "published_at": moment(event.at_us),
        "event_id": sequence,
    }


def _checkpoint(run_id: str, sequence: int, event: CheckpointWritten) -> Values:
    return {
        "run_id": run_id,
        "step": event.step,
        "version": event.version,
        "digest": event.digest,
        "uri": event.uri,
        "cursor_seq": event.cursor,
        "written_at": moment(event.at_us),
        "event_id": sequence,
    }


def _evaluation(run_id: str, sequence: int, event: EvaluationFinished) -> list[Row]:
    key = {"run_id": run_id, "version": event.version, "benchmark": event.benchmark}
    evaluation = key | {
        "step": event.step,
        "items": event.items,
        "score": event.score,
        "missing": event.missing,
        "finished_at": moment(event.at_us),
        "event_id": sequence,
    }
    items = (Row("evaluation_item", key | item.model_dump()) for item in event.scores)
    return [Row("evaluation", evaluation), *items]


def _incident(run_id: str, sequence: int, event: Incident) -> Values:
    return {
        "run_id": run_id,
        "event_id": sequence,
        "kind": event.kind,
        "role": event.role,
        "detail": event.detail,
        "group_id": event.group_id,
        "occurred_at": moment(event.at_us),
    }
