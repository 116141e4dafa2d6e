"""Signals of answers from an engine that gives none: one torch forward over prompt and answer.

An answer's signals are those of the version that sampled its last token, over all its tokens: the newest
policy's view of the whole answer, as the learner will see it. Legend: T tokens of the answer, S of both.
"""

import asyncio
from collections.abc import Collection
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from workers.rollout.engine import Answer, EngineError, Job
from workers.rollout.model import build_model, stage_weights
from workers.rollout.signals import ENTROPY, HIDDEN, SELF_CERTAINTY, self_certainty, token_entropy


class Forward:
    """The model without weights, and those of the versions that answers may still need."""

    def __init__(
        self, model_dir: Path, *, device: str, dtype: str, signals: Collection[str]
    ) -> None:
        self._model = build_model(
            model_dir, device=torch.device(device), dtype=getattr(torch, dtype), attention="sdpa"
        )
        for tensor in self._model.state_dict(keep_vars=True).values():
            # Each call brings its own weights; of the model's, shape and type are enough.
            tensor.data = tensor.data.new_zeros(()).expand(tensor.shape)
        self._signals = frozenset(signals)
        self._weights: dict[int, dict[str, Tensor]] = {}
        self._turn = asyncio.Lock()

    async def put(self, weights: Path, version: int) -> None:
        """Another version, beside those there are. Raises BadWeights."""
        self._weights[version] = await asyncio.to_thread(stage_weights, self._model, weights)

    def keep(self, versions: Collection[int | None]) -> None:
        """Forget all others."""
        self._weights = {v: held for v, held in self._weights.items() if v in versions}

    async def of(self, job: Job, answer: Answer) -> dict[str, np.ndarray]:
        """Signals of an answer that has just ended. Raises EngineError when its version is forgotten."""
        version = answer.spans[-1].version
        weights = self._weights.get(version)
        if weights is None:
            raise EngineError(f"{job.name}: weights of version {version} are no longer held")
        async with self._turn:
            return await asyncio.to_thread(self._compute, weights, job, answer)

    @torch.inference_mode()
    def _compute(
        self, weights: dict[str, Tensor], job: Job, answer: Answer
    ) -> dict[str, np.ndarray]:
        ids = np.concatenate([job.prompt_ids, answer.token_ids]).astype(np.int64)
        # The last token is not fed: nothing is sampled after it.
        fed = torch.from_numpy(ids[:-1])[None].to(self._model.device)  # (1, S - 1)
        options = {"use_cache": False, "output_hidden_states": HIDDEN in self._signals}
        found = functional_call(self._model, weights, (fed,), options)
        first = len(job.prompt_ids) - 1
        logits = found.logits[0, first:].float()  # (T, V)
        temperature = torch.full((len(logits),), job.sampling.temperature, device=logits.device)
        told: dict[str, Tensor] = {}
        if ENTROPY in self._signals:
            told[ENTROPY] = token_entropy(logits, temperature)
        if SELF_CERTAINTY in self._signals:
            told[SELF_CERTAINTY] = self_certainty(logits)
        if HIDDEN in self._signals:
            states = torch.stack([state[0, first:] for state in found.hidden_states])
            told[HIDDEN] = states.float().mean(1)
        return {name: values.float().cpu().numpy() for name, values in told.items()}
