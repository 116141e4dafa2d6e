"""Builders of valid messages for tests: name what matters, the rest is plausible."""

import numpy as np

from broker.arrays import logprob_array, token_array
from broker.messages import (
    Annotation,
    Generation,
    GroupAnnotated,
    GroupGenerated,
    GroupKey,
    GroupRequested,
    GroupVerified,
    MixtureCounters,
    Sample,
    Sampling,
    Verdict,
    VersionSpan,
)

WRITER = "test@host:1:1"
AT_US = 1_700_000_000_000_000


def a_key(group_id: str = "00000001-0-0", **changes: object) -> GroupKey:
    fields = {
        "group_id": group_id,
        "purpose": "train",
        "domain": "math",
        "request_seq": int(group_id.split("-")[0]) if group_id[0].isdigit() else 1,
        "bundle": group_id,
        "bundle_size": 1,
    }
    return GroupKey.model_validate(fields | changes)


def a_sample(key: str = "math:1:1", **changes: object) -> Sample:
    dataset, version, index = key.split(":")
    fields = {
        "key": key,
        "dataset": dataset,
        "dataset_version": version,
        "item_index": int(index),
        "domain": "math",
        "difficulty": None,
        "prompt": "1+1=",
        "target": "2",
        "labeled": True,
        "verifier": {"name": "exact"},
    }
    return Sample.model_validate(fields | changes)


def a_request(
    group_id: str = "00000001-0-0", *, size: int = 2, **changes: object
) -> GroupRequested:
    key = changes.pop("group", None) or a_key(group_id)
    fields = {
        "writer_id": WRITER,
        "at_us": AT_US,
        "group": key,
        "sample": a_sample(domain=key.domain),
        "prompt_text": "1+1=",
        "prompt_ids": token_array([5, 6, 7]),
        "draw": key.request_seq,
        "pass_no": 0,
        "attempt": 0,
        "size": size,
        "sampling": Sampling(temperature=1.0, max_tokens=8),
        "requested_version": 0,
        "mixture": MixtureCounters(
            update_no=0,
            target={key.domain: 1.0},
            owed={key.domain: 0.0},
            requested={key.domain: 1},
            positions={key.domain: 1},
        ),
    }
    return GroupRequested.model_validate(fields | changes)


def a_generation(
    index: int = 0, *, tokens: int = 3, version: int = 0, **changes: object
) -> Generation:
    fields = {
        "index": index,
        "token_ids": token_array(np.arange(tokens) + 3),
        "logprobs": logprob_array(np.full(tokens, -0.5)),
        "finish_reason": "stop",
        "spans": (VersionSpan(version=version, first=0, end=tokens),),
        "text": "2",
        "seed": index,
        "started_at_us": AT_US,
        "finished_at_us": AT_US + 1,
    }
    return Generation.model_validate(fields | changes)


def a_generated(request: GroupRequested | None = None, **changes: object) -> GroupGenerated:
    request = request or a_request()
    fields = {
        "writer_id": WRITER,
        "at_us": AT_US,
        "group": request.group,
        "status": "ok",
        "request": request,
        "generations": tuple(a_generation(i) for i in range(request.size)),
        "engine": "torch",
        "worker": WRITER,
    }
    return GroupGenerated.model_validate(fields | changes)


def a_verdict(index: int = 0, score: float | None = 1.0, **changes: object) -> Verdict:
    fields = {
        "index": index,
        "status": "ok",
        "score": score,
        "extracted": "2",
        "answer_key": "2",
        "answer_class": 0,
        "verifier": "exact",
        "verifier_version": "1",
        "latency_ms": 0.1,
    }
    return Verdict.model_validate(fields | changes)


def a_verified(
    request: GroupRequested | None = None,
    scores: tuple[float, ...] = (1.0, 0.0),
    *,
    version: int = 0,
    **changes: object,
) -> GroupVerified:
    request = request or a_request(size=len(scores))
    fields = {
        "writer_id": WRITER,
        "at_us": AT_US,
        "group": request.group,
        "status": "ok",
        "request": request,
        "generations": tuple(a_generation(i, version=version) for i in range(len(scores))),
        "verdicts": tuple(a_verdict(i, score) for i, score in enumerate(scores)),
        "engine": "torch",
        "worker": WRITER,
    }
    return GroupVerified.model_validate(fields | changes)


def an_annotation(index: int = 0, *, advantage: float = 0.5, **changes: object) -> Annotation:
    fields = {
        "index": index,
        "target": "2",
        "target_source": "gold",
        "admitted": True,
        "reward": 1.0,
        "advantage": advantage,
        "weight": 1.0,
        "reason": "uniform",
    }
    return Annotation.model_validate(fields | changes)


def an_annotated(
    request: GroupRequested | None = None,
    advantages: tuple[float, ...] = (0.5, -0.5),
    *,
    window: int = 1,
    window_size: int = 1,
    window_index: int = 0,
    version: int = 0,
    **changes: object,
) -> GroupAnnotated:
    request = request or a_request(size=len(advantages))
    fields = {
        "writer_id": WRITER,
        "at_us": AT_US,
        "group": request.group,
        "outcome": "admitted",
        "reason": "admitted",
        "request": request,
        "generations": tuple(a_generation(i, version=version) for i in range(len(advantages))),
        "annotations": tuple(an_annotation(i, advantage=a) for i, a in enumerate(advantages)),
        "window": window,
        "window_size": window_size,
        "window_index": window_index,
        "cut": 1,
        "verified_seq": 1,
        "policy": "test",
        "policy_version": "1",
    }
    return GroupAnnotated.model_validate(fields | changes)
