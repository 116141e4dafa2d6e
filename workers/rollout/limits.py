"""Which jobs no engine can answer with a model, whatever its weights."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from workers.rollout.engine import Job

if TYPE_CHECKING:
    from transformers import PretrainedConfig


@dataclass(frozen=True)
class Limits:
    """What a model can take."""

    vocabulary: int
    positions: int | None
    """Of prompt and answer together; None: no bound."""

    @classmethod
    def of(cls, config: "PretrainedConfig") -> "Limits":
        return cls(int(config.vocab_size), getattr(config, "max_position_embeddings", None))

    def refusal(self, job: Job) -> str | None:
        """Why the job can never be answered as it should; None when it can."""
        sampling, length = job.sampling, len(job.prompt_ids)
        neutral = (sampling.top_p, sampling.top_k, sampling.min_p, sampling.repetition_penalty)
        if neutral != (1.0, 0, 0.0, 1.0):
            return (
                f"top_p, top_k, min_p, repetition_penalty are {neutral}; this engine samples from the "
                "whole distribution: expected 1, 0, 0, 1"
            )
        if length == 0:
            return "prompt of 0 tokens; expected at least 1"
        if job.prompt_ids.min() < 0 or job.prompt_ids.max() >= self.vocabulary:
            return f"prompt ids lie outside the model's vocabulary 0..{self.vocabulary - 1}"
        if self.positions is not None and length + sampling.max_tokens > self.positions:
            return (
                f"prompt of {length} tokens and max_tokens {sampling.max_tokens} exceed the model's "
                f"{self.positions} positions"
            )
        return None
