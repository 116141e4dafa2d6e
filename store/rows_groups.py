"""Rows of the four group logs and of shadow decisions."""

import hashlib
import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import orjson

from broker.arrays import Array, unpack
from broker.messages import (
    Annotation,
    Generation,
    GroupAnnotated,
    GroupGenerated,
    GroupKey,
    GroupRequested,
    GroupVerified,
    Sample,
    ShadowDecided,
    Verdict,
)
from store.clean import moment
from store.row import End, Row, Values


def requested(run_id: str, sequence: int, event: GroupRequested) -> list[Row]:
    prompt_sha256 = hashlib.sha256(
        event.prompt_ids.data + event.prompt_text.encode("utf-8", "surrogatepass")
    ).digest()
    prompt = {
        "prompt_sha256": prompt_sha256,
        "text": event.prompt_text,
        "token_ids": event.prompt_ids.data,
        "tokens": len(event.prompt_ids),
    }
    group = _group(run_id, event.group) | {
        "sample_key": event.sample.key,
        "role": event.role,
        "parent": event.parent,
        "benchmark": event.benchmark,
        "draw": event.draw,
        "pass_no": event.pass_no,
        "attempt": event.attempt,
        "size": event.size,
        "cohort": event.cohort,
        "requested_version": event.requested_version,
        "prompt_sha256": prompt_sha256,
        "state": "requested",
        "requested_at": moment(event.at_us),
        "requests_seq": sequence,
    }
    return [*_sample(event.sample), Row("rendered_prompt", prompt), Row("prompt_group", group)]


def generated(run_id: str, sequence: int, event: GroupGenerated) -> list[Row]:
    group = _group(run_id, event.group) | {"state": "generated", "generated_seq": sequence}
    request = event.request
    shared = {
        "run_id": run_id,
        "group_id": event.group.group_id,
        "prompt_tokens": None if request is None else len(request.prompt_ids),
        "sampling": None if request is None else request.sampling.model_dump(),
        "engine": event.engine,
        "worker": event.worker,
    }
    means = _finite_means([answer.logprobs for answer in event.generations])
    answers = (
        Row("generation", shared | _generation(answer, *mean))
        for answer, mean in zip(event.generations, means, strict=True)
    )
    return [Row("prompt_group", group), *answers]


def verified(run_id: str, sequence: int, event: GroupVerified) -> list[Row]:
    ok = event.status == "ok"
    group = _group(run_id, event.group) | {
        "state": "verified",
        "verified_seq": sequence,
        "verified_ok": ok,
    }
    if event.group.purpose != "train":  # the others end when verified
        group |= {
            "state": "measured" if ok else "failed",
            "ends": End.MEASURED if ok else End.FAILED,
            "drop_reason": None if ok else event.reason,
            "terminal_at": moment(event.at_us),
        }
    at_us = event.at_us
    return [
        Row("prompt_group", group),
        *(verdict(run_id, event.group.group_id, 0, at_us, found) for found in event.verdicts),
    ]


def annotated(run_id: str, sequence: int, event: GroupAnnotated) -> list[Row]:
    group = _group(run_id, event.group) | {
        "state": "annotated",
        "outcome": event.outcome,
        "window_no": event.window,
        "window_index": event.window_index,
        "annotated_seq": sequence,
    }
    if event.outcome != "admitted":
        failed = event.outcome == "failed"
        group |= {
            "state": event.outcome,
            "ends": End.FAILED if failed else End.DROPPED_BY_POLICY,
            "drop_reason": event.reason,
            "terminal_at": moment(event.at_us),
        }
    return [Row("prompt_group", group), *_decision(run_id, event, event_id=0)]


def shadow(run_id: str, sequence: int, event: ShadowDecided) -> list[Row]:
    return _decision(run_id, event, event_id=sequence)


def verdict(run_id: str, group_id: str, event_id: int, at_us: int, found: Verdict) -> Row:
    """event_id: 0 for the run's own verdict, the LEDGER sequence for a revision."""
    values = {
        "run_id": run_id,
        "group_id": group_id,
        "generation_index": found.index,
        "event_id": event_id,
        "verifier": found.verifier,
        "verifier_version": found.verifier_version,
        "status": found.status,
        "score": found.score,
        "extracted": found.extracted,
        "answer_key": found.answer_key,
        "answer_class": found.answer_class,
        "components": found.components,
        "detail": found.detail,
        "latency_ms": found.latency_ms,
        "verified_at": moment(at_us),
    }
    return Row("verdict", values)


def _sample(sample: Sample) -> list[Row]:
    chat = not isinstance(sample.prompt, str)
    prompt = (
        orjson.dumps([turn.model_dump() for turn in sample.prompt]).decode()
        if not isinstance(sample.prompt, str)
        else sample.prompt
    )
    values = {
        "sample_key": sample.key,
        "dataset": sample.dataset,
        "dataset_version": sample.dataset_version,
        "item_index": sample.item_index,
        "domain": sample.domain,
        "difficulty": sample.difficulty,
        "prompt": prompt,
        "prompt_is_chat": chat,
        "prompt_sha256": hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).digest(),
        "target": sample.target,
        "labeled": sample.labeled,
        "verifier": sample.verifier,
        "options": sample.options,
    }
    dataset = {"dataset": sample.dataset, "dataset_version": sample.dataset_version}
    return [Row("dataset", dataset), Row("sample", values)]


def _group(run_id: str, key: GroupKey) -> Values:
    return {
        "run_id": run_id,
        "group_id": key.group_id,
        "domain": key.domain,
        "purpose": key.purpose,
        "bundle": key.bundle,
        "bundle_size": key.bundle_size,
        "request_seq": key.request_seq,
        "ends": 0,
    }


def _generation(answer: Generation, count: int, mean: float | None) -> Values:
    versions = [span.version for span in answer.spans]
    return {
        "generation_index": answer.index,
        "tokens": len(answer.token_ids),
        "token_ids": answer.token_ids.data,
        "logprob_count": count,
        "finish_reason": answer.finish_reason,
        "version_min": min(versions),
        "version_max": max(versions),
        "version_spans": [(span.version, span.first, span.end) for span in answer.spans],
        "text": answer.text,
        "text_sha256": hashlib.sha256(answer.text.encode("utf-8", "surrogatepass")).digest(),
        "logprob_mean": mean,
        "seed": answer.seed,
        "started_at": moment(answer.started_at_us),
        "finished_at": moment(answer.finished_at_us),
    }


def _finite_means(arrays: Sequence[Array]) -> list[tuple[int, float | None]]:
    """Of each array: how many values are finite, and their mean; None of none."""
    filled = [unpack(array).ravel() for array in arrays if array.data]
    if not filled:
        return [(0, None)] * len(arrays)
    # All in one go: for short answers a call of numpy's costs more than its sums do.
    ends = list(accumulate(map(len, filled)))
    values = np.concatenate(filled, dtype=np.float64)  # float32 values cannot overflow it
    with np.errstate(invalid="ignore"):  # of both infinities
        totals = iter(np.add.reduceat(values, [0, *ends[:-1]]).tolist())
    rest = iter(filled)
    return [_finite_mean(next(rest), next(totals)) if array.data else (0, None) for array in arrays]


def _finite_mean(values_T: np.ndarray, total: float) -> tuple[int, float | None]:
    if not math.isfinite(total):
        values_T = values_T[np.isfinite(values_T)]
        total = float(values_T.sum(dtype=np.float64))
    return len(values_T), total / len(values_T) if len(values_T) else None


def _decision(run_id: str, event: GroupAnnotated | ShadowDecided, *, event_id: int) -> list[Row]:
    who = {
        "run_id": run_id,
        "group_id": event.group.group_id,
        "shadow": event_id > 0,
        "policy": event.policy,
        "policy_version": event.policy_version,
        "window_no": event.window,
    }
    group = who | {
        "outcome": event.outcome,
        "reason": event.reason,
        "verified_seq": event.verified_seq,
        "cut": event.cut if isinstance(event, GroupAnnotated) else None,
        "event_id": event_id,
        "decided_at": moment(event.at_us),
    }
    answers = (Row("annotation", who | _annotation(found)) for found in event.annotations)
    return [Row("group_decision", group), *answers]


def _annotation(found: Annotation) -> Values:
    return {
        "generation_index": found.index,
        "target": found.target,
        "target_source": found.target_source,
        "admitted": found.admitted,
        "reward": found.reward,
        "advantage": found.advantage,
        "weight": found.weight,
        "token_weights": None if found.token_weights is None else found.token_weights.data,
        "reason": found.reason,
        "signals": found.signals,
    }
