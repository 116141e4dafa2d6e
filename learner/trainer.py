"""One optimizer step on one batch of rows, the same to the bit whenever it is taken from the same state.

A step without signal, or with a gradient that is not finite, changes nothing.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from learner.batch import Row, micro_batches
from learner.denominators import DENOMINATORS
from learner.interrupt import Interrupted, make_interruptible
from learner.losses import LOSSES
from learner.losses.base import Tokens
from learner.metrics import Metrics, TokenSums
from learner.model import answer_logprobs, head_weight, load_weights, weights_bytes
from learner.optimizer import load_optimizer, make_optimizer, optimizer_bytes
from learner.schedule import learning_rate
from learner.settings import LearnerSettings


@dataclass(frozen=True)
class Taken:
    """What became of a step."""

    skipped: str
    """Why no update was made: `no_signal`, `nonfinite`; empty when it was."""
    metrics: Metrics


@dataclass(frozen=True)
class MicroBatch:
    """B rows padded on the right for the model, their N answer tokens laid end to end for the loss."""

    input_ids_BS: torch.Tensor
    positions_N: torch.Tensor
    """Index into B*S of the token before each answer token."""
    answer_ids_N: torch.Tensor
    temperature_N: torch.Tensor
    rollout_logprobs_N: torch.Tensor
    advantages_N: torch.Tensor
    coefficients_N: torch.Tensor
    """Weight over denominator: the loss of the step is their product with the token losses, summed."""
    kept_N: torch.Tensor
    rows_N: torch.Tensor


def lay_out(rows: Sequence[Row], scales_B: np.ndarray, device: torch.device) -> MicroBatch:
    """Rows of one micro-batch as tensors. The last answer token is predicted, never read, so not an input."""
    width = max(row.length for row in rows) - 1
    input_ids_BS = np.zeros((len(rows), width), np.int64)
    positions: list[np.ndarray] = []
    for index, row in enumerate(rows):
        prompt, end = len(row.prompt_ids_P), row.length - 1
        input_ids_BS[index, :prompt] = row.prompt_ids_P
        input_ids_BS[index, prompt:end] = row.answer_ids_T[:-1]
        positions.append(index * width + np.arange(prompt - 1, end))
    weights = [row.weights_T() for row in rows]
    counts = [row.tokens for row in rows]

    def per_token(values: Sequence[float]) -> np.ndarray:
        return np.repeat(np.asarray(values, np.float32), counts)

    def line(parts: Sequence[np.ndarray], dtype: type) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(parts).astype(dtype)).to(device)

    return MicroBatch(
        input_ids_BS=torch.from_numpy(input_ids_BS).to(device),
        positions_N=line(positions, np.int64),
        answer_ids_N=line([row.answer_ids_T for row in rows], np.int64),
        temperature_N=line([per_token([row.temperature for row in rows])], np.float32),
        rollout_logprobs_N=line([row.rollout_logprobs_T for row in rows], np.float32),
        advantages_N=line([per_token([row.advantage for row in rows])], np.float32),
        coefficients_N=line([w * s for w, s in zip(weights, scales_B, strict=True)], np.float32),
        kept_N=line([w > 0 for w in weights], np.bool_),
        rows_N=line([np.repeat(np.arange(len(rows)), counts)], np.int64),
    )


class Trainer:
    """The model, its optimizer, and how a step changes both."""

    def __init__(
        self,
        model: PreTrainedModel,
        settings: LearnerSettings,
        *,
        dtype: torch.dtype,
        interrupted: threading.Event,
    ) -> None:
        self.model = model
        self.settings = settings
        self.dtype = dtype
        self.loss = LOSSES[settings.loss](settings)
        self.optimizer = make_optimizer(model, settings)
        self.interrupted = interrupted
        """Set from another thread: the computation in progress is given up."""
        make_interruptible(model, interrupted)

    @property
    def vocabulary(self) -> int:
        """How many token ids the model knows."""
        return head_weight(self.model).shape[0]

    def step(self, rows: Sequence[Row], *, done: float = 0.0) -> Taken:
        """Take one optimizer step on all rows of a window. Raises Interrupted.

        `done`: the fraction of the run's steps before this one, for the schedule of the learning rate.
        """
        scales_B = DENOMINATORS[self.settings.denominator](rows)
        # A row without weighted advantage adds exactly zero to loss and gradient: not computed.
        informative = [index for index, row in enumerate(rows) if row.signal() > 0]
        sums = TokenSums()
        if not informative:
            # A zero gradient would still move the weights by the optimizer's momentum.
            return Taken("no_signal", {**sums.metrics(), "grad_norm": 0.0})
        try:
            lengths = [rows[index].length - 1 for index in informative]
            for batch in micro_batches(lengths, self.settings.micro_batch_tokens):
                chosen = [informative[index] for index in batch]
                self._accumulate([rows[index] for index in chosen], scales_B[chosen], sums)
            norm = self._clipped_norm()
            if norm is None:
                return Taken("nonfinite", {**_finite(sums.metrics()), "grad_norm": None})
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(self.settings, done)
            self.optimizer.step()
            return Taken("", {**_finite(sums.metrics()), "grad_norm": norm})
        finally:
            self.optimizer.zero_grad(set_to_none=True)

    def weights(self) -> bytes:
        return weights_bytes(self.model)

    def rng(self) -> bytes:
        """State of torch's CPU generator."""
        return torch.get_rng_state().numpy().tobytes()

    def state(self) -> tuple[bytes, bytes]:
        """Model and optimizer as safetensors."""
        return weights_bytes(self.model), optimizer_bytes(self.model, self.optimizer)

    def restore(self, model: bytes, optimizer: bytes, rng: bytes) -> None:
        """Back to a `state`, to the bit."""
        torch.set_rng_state(torch.frombuffer(bytearray(rng), dtype=torch.uint8))
        load_weights(self.model, model)
        load_optimizer(self.model, self.optimizer, optimizer)

    def _accumulate(self, rows: Sequence[Row], scales_B: np.ndarray, sums: TokenSums) -> None:
        """Forward and backward of one micro-batch; gradients add up."""
        if self.interrupted.is_set():
            raise Interrupted
        batch = lay_out(rows, scales_B, self.model.device)
        logprobs_N, entropy_N = answer_logprobs(
            self.model, batch.input_ids_BS, batch.positions_N, batch.answer_ids_N,
            batch.temperature_N, dtype=self.dtype,
        )  # fmt: skip
        losses = self.loss(
            Tokens(
                logprobs_N, batch.rollout_logprobs_N, batch.advantages_N, batch.kept_N,
                batch.rows_N, len(rows),
            )
        )  # fmt: skip
        weighted = (losses.losses_N * batch.coefficients_N).sum()
        weighted.backward()
        sums.add(losses, weighted.detach(), entropy_N, batch.kept_N)

    def _clipped_norm(self) -> float | None:
        """Global gradient norm before clipping to the maximum; None when it is not finite."""
        norm = torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), self.settings.max_grad_norm
        ).item()
        return norm if np.isfinite(norm) else None


def _finite(metrics: Metrics) -> Metrics:
    """A message carries finite numbers only; what is not finite is told as missing."""
    return {k: v if v is not None and np.isfinite(v) else None for k, v in metrics.items()}
