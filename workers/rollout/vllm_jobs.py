"""Between jobs and vLLM: prompts and explicit sampling parameters in, answers out. Pure functions.

Every parameter that shapes the distribution is stated, so that nothing of the model folder's generation
config or of vLLM's defaults is applied unseen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from broker.messages import VersionSpan
from workers.rollout.engine import Answer, EngineError, Job
from workers.rollout.limits import Limits

LEAST_TEMPERATURE = 0.01
"""vLLM silently lifts a lower one to this."""
CHUNK_TOKENS = 16
"""Tokens that vLLM hands over at once; the first and the last come without waiting for more."""
ROUND_OFF = 1e-4
"""Nats by which rounding may lift the logarithm of a certain token above 0."""


def refusal(job: Job, limits: Limits) -> str | None:
    """Why vLLM can never answer the job as it should; None when it can."""
    if 0 < job.sampling.temperature < LEAST_TEMPERATURE:
        return (
            f"temperature {job.sampling.temperature}; vLLM needs 0 or at least {LEAST_TEMPERATURE}"
        )
    return limits.refusal(job)


def prompt(job: Job, version: int) -> dict[str, Any]:
    """The prompt as token ids; the salt keeps keys and values of other versions out of it."""
    return {"prompt_token_ids": job.prompt_ids.tolist(), "cache_salt": f"v{version}"}


def parameters(job: Job, seed: int, end_tokens: frozenset[int]) -> dict[str, Any]:
    """Arguments of `SamplingParams`. One answer a request: vLLM derives other seeds for n > 1."""
    sampling = job.sampling
    return {
        "n": 1,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": seed,
        "max_tokens": sampling.max_tokens,
        "min_tokens": 0,
        # The end tokens that the torch engine knows, and no others.
        "ignore_eos": True,
        "stop": [],
        "stop_token_ids": sorted(end_tokens),
        # Of the sampled token alone.
        "logprobs": 0,
        "detokenize": False,
        "stream_interval": CHUNK_TOKENS,
    }


@dataclass
class Row:
    """An answer as it comes in pieces."""

    job: Job
    started_at_us: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def add(self, token_ids: Sequence[int], logprobs: Sequence[Mapping[int, Any]] | None) -> None:
        """The next tokens and what vLLM says of each, by token id. Raises EngineError."""
        if logprobs is None or len(logprobs) != len(token_ids):
            found = 0 if logprobs is None else len(logprobs)
            raise EngineError(
                f"{self.job.name}: vLLM gave {found} log-probabilities for {len(token_ids)} tokens"
            )
        for token, known in zip(token_ids, logprobs, strict=True):
            if token not in known:
                raise EngineError(
                    f"{self.job.name}: vLLM gave no log-probability of the sampled token {token}"
                )
            logprob = float(known[token].logprob)
            # NaN is refused too.
            if not logprob <= ROUND_OFF:
                raise EngineError(
                    f"{self.job.name}: vLLM gave log-probability {logprob:g}; expected at most 0"
                )
            self.token_ids.append(token)
            self.logprobs.append(min(logprob, 0.0))

    def finished(
        self, reason: str | None, versions: Sequence[Any] | None, finished_at_us: int
    ) -> Answer:
        """reason, versions: `finish_reason` and `weight_versions` of the last output. Raises EngineError."""
        if reason not in ("stop", "length"):
            raise EngineError(f"{self.job.name}: vLLM ended an answer with {reason!r}")
        if not versions:
            raise EngineError(f"{self.job.name}: vLLM told no weight versions of an answer")
        return Answer(
            token_ids=np.array(self.token_ids, dtype=np.int32),
            logprobs=np.array(self.logprobs, dtype=np.float32),
            finish_reason=reason,
            spans=tuple(
                VersionSpan(version=int(span.version), first=span.start, end=span.end)
                for span in versions
            ),
            started_at_us=self.started_at_us,
            finished_at_us=finished_at_us,
        )
