"""Between messages and the engine: a request becomes a job, its answers become the group's message.

What an engine returns is checked here, whichever engine it is: a group that breaks a promise is failed
with the reason, never passed on as good.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from broker.arrays import packed, unpack
from broker.errors import BadConfiguration, Poison
from broker.messages import Event, GroupGenerated, GroupKey, GroupRequested
from broker.seeds import row_seed
from broker.telemetry import now_us
from workers.rollout.engine import Answer, Job, Refused, Result
from workers.rollout.metrics import duplicates_total, groups_total


class Texts:
    """Turns answers into text for verifiers and people; nobody trains on it."""

    def __init__(self, model_dir: Path) -> None:
        file = model_dir / "tokenizer.json"
        if not file.exists():
            raise BadConfiguration(f"{file}: no such file; expected the model's tokenizer")
        self._tokenizer = Tokenizer.from_file(str(file))

    def of(self, answers: Sequence[Answer]) -> list[str]:
        """Without special tokens, and without the end token even where it is an ordinary one."""
        shown = [a.token_ids[: len(a.token_ids) - (a.finish_reason == "stop")] for a in answers]
        return self._tokenizer.decode_batch([ids.tolist() for ids in shown])


def fault(request: GroupRequested, answers: Sequence[Answer]) -> str:
    """The first promise of the engine that its answers break; empty when they keep all."""
    if len(answers) != request.size:
        return f"{len(answers)} answers; expected {request.size}"
    for index, answer in enumerate(answers):
        if reason := _answer_fault(request, answer):
            return f"answer {index}: {reason}"
    if not _are_logprobs(np.concatenate([answer.logprobs for answer in answers])):
        index = next(i for i, answer in enumerate(answers) if not _are_logprobs(answer.logprobs))
        return f"answer {index}: a log-probability is not finite or above 0"
    return ""


def _are_logprobs(values: np.ndarray) -> bool:
    # Written so that a NaN, which makes every comparison false, is refused.
    return bool(values.min() > -np.inf and values.max() <= 0)


def _answer_fault(request: GroupRequested, answer: Answer) -> str:
    tokens, limit = len(answer.token_ids), request.sampling.max_tokens
    if not 1 <= tokens <= limit:
        return f"{tokens} tokens; expected 1 to {limit}"
    if len(answer.logprobs) != tokens:
        return f"{len(answer.logprobs)} log-probabilities for {tokens} tokens"
    if not answer.spans:
        return "no version is known for its tokens"
    oldest, newest = (f(span.version for span in answer.spans) for f in (min, max))
    pinned = request.group.purpose != "train"
    if oldest < request.requested_version or (pinned and newest != request.requested_version):
        return (
            f"sampled by versions {oldest} to {newest}; requested "
            f"{'exactly' if pinned else 'at least'} {request.requested_version}"
        )
    return ""


@lru_cache(maxsize=4096)  # needed when its group is asked for, and when it is answered
def _row_seeds(run_seed: int, group_id: str, size: int) -> tuple[int, ...]:
    return tuple(row_seed(run_seed, group_id, index) for index in range(size))


class Group:
    """Makes the jobs and messages of one rollout process."""

    def __init__(self, texts: Texts, *, run_seed: int, engine: str, worker: str) -> None:
        self._texts = texts
        self._run_seed = run_seed
        self._engine = engine
        self._worker = worker

    def _seeds(self, request: GroupRequested) -> tuple[int, ...]:
        return _row_seeds(self._run_seed, request.group.group_id, request.size)

    def job(self, request: GroupRequested) -> Job:
        """Raises Poison when the sampling parameters would bias training."""
        sampling = request.sampling
        truncated = (sampling.top_p, sampling.top_k, sampling.min_p, sampling.repetition_penalty)
        if request.group.purpose == "train" and truncated != (1.0, 0, 0.0, 1.0):
            raise Poison(
                f"top_p, top_k, min_p, repetition_penalty are {truncated}; training needs answers "
                "from the whole distribution: expected 1, 0, 0, 1"
            )
        prompt_ids = unpack(request.prompt_ids)
        if prompt_ids.dtype != np.int32 or prompt_ids.ndim != 1:
            raise Poison(
                f"prompt_ids of type {prompt_ids.dtype} and shape {prompt_ids.shape}; "
                "expected int32, shape (P,)"
            )
        return Job(request.group.group_id, prompt_ids, self._seeds(request), sampling)

    def generated(self, request: GroupRequested, result: Result) -> GroupGenerated:
        """The answers as a message; Poison when there are none or one breaks a promise."""
        if isinstance(result, Refused):
            raise Poison(result.reason)
        if reason := fault(request, result):
            raise Poison(f"engine {self._engine}: {reason}")
        if request.sampling.temperature > 0:
            duplicates_total.inc(len(result) - len({a.token_ids.tobytes() for a in result}))
        groups_total.labels("ok").inc()
        texts, seeds = self._texts.of(result), self._seeds(request)
        # Validated in one go, which takes half the time of doing so for each answer and array.
        return GroupGenerated.model_validate(
            {
                "writer_id": self._worker,
                "at_us": now_us(),
                "group": request.group,
                "status": "ok",
                "request": request,
                "generations": tuple(
                    {
                        "index": index,
                        "token_ids": packed(answer.token_ids, "<i4"),
                        "logprobs": packed(answer.logprobs, "<f4"),
                        "finish_reason": answer.finish_reason,
                        "spans": answer.spans,
                        "text": text,
                        "seed": seed,
                        "started_at_us": answer.started_at_us,
                        "finished_at_us": answer.finished_at_us,
                        "signals": {k: packed(v, "<f4") for k, v in answer.signals.items()},
                    }
                    for index, (answer, text, seed) in enumerate(
                        zip(result, texts, seeds, strict=True)
                    )
                ),
                "engine": self._engine,
                "worker": self._worker,
            }
        )

    def failed(self, group: GroupKey, event: Event | None, reason: str) -> GroupGenerated:
        groups_total.labels("failed").inc()
        return GroupGenerated(
            writer_id=self._worker,
            at_us=now_us(),
            group=group,
            status="failed",
            reason=reason,
            request=event if isinstance(event, GroupRequested) else None,
            generations=(),
            engine=self._engine,
            worker=self._worker,
        )
