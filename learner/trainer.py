"""One step on one batch of rows, the same to the bit whenever it is taken from the same state.

A step without signal, or with a gradient that is zero or not finite, changes nothing.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import PreTrainedModel

from learner.batch import Row, micro_batches, parts_of
from learner.compute import may_stream, prepare_layers
from learner.denominators import DENOMINATORS
from learner.interrupt import Interrupted, make_interruptible
from learner.layout import answers_in_line, lay_out
from learner.metrics import Metrics, TokenSums
from learner.model import answer_logprobs, head_weight, load_weights, weights_bytes
from learner.objective import needs_old, needs_whole_step
from learner.optimizer import Snapshot, load_optimizer, make_optimizer, optimizer_bytes
from learner.settings import LearnerSettings
from learner.streams import Gradients, Streams, add_up, gradients_of, split_rows
from learner.terms import Terms, split


@dataclass(frozen=True)
class Taken:
    """What became of a step."""

    skipped: str
    """Why no update was made: `no_signal` (also: everything masked), `nonfinite`; empty when it was."""
    metrics: Metrics


@dataclass(frozen=True)
class Known:
    """Per row of an update, what was computed before its first micro-batch; on the model's device."""

    old: list[torch.Tensor] | None = None
    whole: list[torch.Tensor] | None = None


@dataclass(frozen=True)
class Update:
    """One of a step's updates: its rows, and what is known of them."""

    rows: Sequence[Row]
    known: Known


@dataclass(frozen=True)
class Begun:
    """A step whose first gradients are there, in the model's parameters; nothing else has changed yet."""

    updates: Sequence[Update] = ()
    """Those with a signal; none: the step has none."""
    before: Snapshot | None = None
    """Where several updates may have to be undone."""
    sums: TokenSums = field(default_factory=TokenSums)


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
        self.reference: PreTrainedModel | None = None
        """Frozen; what the KL term compares with. Set before the first step where one is configured."""
        self.terms = Terms(settings)
        self.optimizer = make_optimizer(model, settings)
        self._streams = Streams(settings.threads if may_stream(model, settings) else 1)
        self.interrupted = interrupted
        """Set from another thread: the computation in progress is given up."""
        prepare_layers(model, settings)
        make_interruptible(model, interrupted)

    @property
    def vocabulary(self) -> int:
        """How many token ids the model knows."""
        return head_weight(self.model).shape[0]

    def step(self, rows: Sequence[Row], *, rate: float | None = None) -> Taken:
        """Take the updates of one window, by default one. Raises Interrupted, with everything as before.

        rate: learning rate of this step; None: the settings' own.
        """
        return self.finish(self.begin(rows), rate=rate)

    def begin(self, rows: Sequence[Row]) -> Begun:
        """The gradients of the step's first update; `finish` takes the step, another `begin` gives it up."""
        if (self.settings.kl is None) != (self.reference is None):
            raise ValueError("a KL term and a reference model: expected both or neither")
        self.optimizer.zero_grad(set_to_none=True)
        if not any(row.signal() > 0 for row in rows):
            return Begun()
        parts = parts_of(rows, self.settings.updates_per_step)
        before = Snapshot(self.model, self.optimizer) if len(parts) > 1 else None
        try:
            known = self._known_before(parts)
            updates = [
                Update(part, found)
                for part, found in zip(parts, known, strict=True)
                if any(row.signal() > 0 for row in part)
            ]
            begun = Begun(updates, before)
            self._gradients(updates[0], begun.sums)
        except Interrupted:
            self.optimizer.zero_grad(set_to_none=True)
            raise
        return begun

    def finish(self, begun: Begun, *, rate: float | None = None) -> Taken:
        """Take the step that was begun last. Raises Interrupted, with everything as before it."""
        sums, norms = begun.sums, list[float]()
        if not begun.updates:
            # A zero gradient would still move the weights by the optimizer's momentum.
            return Taken("no_signal", {**sums.metrics(), "grad_norm": 0.0, "updates": 0})
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate if rate is None else rate
        try:
            for number, update in enumerate(begun.updates):
                if number:
                    self._gradients(update, sums)
                norm = self._apply()
                if norm is None:
                    if begun.before is not None:
                        begun.before.restore()
                    metrics = {**_finite(sums.metrics()), "grad_norm": None, "updates": 0}
                    return Taken("nonfinite", metrics)
                norms.append(norm)
        except Interrupted:
            if begun.before is not None:
                begun.before.restore()
            raise
        finally:
            self.optimizer.zero_grad(set_to_none=True)
        # Means over the updates, so that their number does not change what the figures mean.
        sums.loss /= len(norms)
        updates = sum(norm > 0 for norm in norms)
        told: Metrics = {"grad_norm": sum(norms) / len(norms), "updates": updates}
        return Taken("" if updates else "no_signal", {**_finite(sums.metrics()), **told})

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

    # --- what is computed ---

    def computed(self, rows: Sequence[Row]) -> list[int]:
        """Indices of the rows that go through the model.

        A row without weighted advantage adds exactly zero to the loss; the terms beside it may want it.
        """
        s = self.settings
        all_rows = s.regularized_rows == "all" and (s.kl is not None or s.entropy_bonus > 0)
        return [i for i, row in enumerate(rows) if row.signal() > 0 or (all_rows and row.tokens)]

    def _batches(self, rows: Sequence[Row], chosen: Sequence[int]) -> Iterator[list[int]]:
        """Indices of the rows of each micro-batch. Raises Interrupted between two."""
        lengths = [rows[index].length - 1 for index in chosen]
        for batch in micro_batches(lengths, self.settings.micro_batch_tokens):
            if self.interrupted.is_set():
                raise Interrupted
            yield [chosen[index] for index in batch]

    @torch.no_grad()
    def logprobs(self, rows: Sequence[Row]) -> list[torch.Tensor]:
        """Of each row's answer tokens, (T,) float32, without gradients; empty where it has none."""
        found = [torch.zeros(0, device=self.model.device)] * len(rows)
        for batch in self._batches(rows, [i for i, row in enumerate(rows) if row.tokens]):
            some = [rows[index] for index in batch]
            laid = lay_out(some, np.ones(len(some)), self.model.device)
            logprobs_N, _ = answer_logprobs(self.model, laid, dtype=self.dtype)
            for index, part in zip(batch, split(logprobs_N, [r.tokens for r in some]), strict=True):
                found[index] = part
        return found

    def _known_before(self, parts: Sequence[Sequence[Row]]) -> list[Known]:
        """One extra forward pass over the step, only where an objective or several updates need one."""
        whole = needs_whole_step(self.settings)
        if not whole and not (len(parts) > 1 and needs_old(self.settings)):
            return [Known()] * len(parts)
        found: list[Known] = []
        for part in parts:
            old = self.logprobs(part)
            factors = None
            if whole:
                line = answers_in_line(part, np.ones(len(part)), self.model.device)
                counts = [row.tokens for row in part]
                factors = split(self.terms.whole_step_factors(line, torch.cat(old)), counts)
            found.append(Known(old, factors))
        return found

    def _gradients(self, update: Update, sums: TokenSums) -> None:
        """Leave them in the model's parameters."""
        rows = update.rows
        scales_B = DENOMINATORS[self.settings.denominator](rows)
        self.optimizer.zero_grad(set_to_none=True)

        def stream(number: int, chosen: Sequence[int]) -> tuple[TokenSums, Gradients | None]:
            told, gradients = TokenSums(), None
            for batch in self._batches(rows, chosen):
                loss = self._loss(rows, batch, scales_B, update.known, told)
                if number == 0:
                    loss.backward()  # into the parameters: one copy of the gradients fewer
                else:
                    gradients = add_up(gradients, gradients_of(loss, self._trained()))
            return told, gradients

        parts = split_rows(rows, self.computed(rows), self._streams.count)
        for told, gradients in self._streams.compute(stream, parts):
            sums.include(told)
            if gradients is not None:
                self._add(gradients)

    def _trained(self) -> list[torch.nn.Parameter]:
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def _add(self, gradients: Gradients) -> None:
        parameters = self._trained()
        total = add_up([parameter.grad for parameter in parameters], gradients)
        for parameter, gradient in zip(parameters, total, strict=True):
            parameter.grad = gradient

    def _apply(self) -> float | None:
        """One optimizer update; the gradient norm before clipping, None when it is not finite."""
        norm = self._clipped_norm()
        # Zero where corrections or clipping left nothing: momentum would still move the weights.
        if norm:
            self.optimizer.step()
        return norm

    def _loss(
        self, rows: Sequence[Row], batch: Sequence[int], scales_B: np.ndarray, known: Known,
        sums: TokenSums,
    ) -> torch.Tensor:  # fmt: skip
        """Forward pass of one micro-batch: its part of the loss, a scalar with gradients."""
        laid = lay_out([rows[i] for i in batch], scales_B[batch], self.model.device)
        reference_N = None
        if self.reference is not None:
            with torch.no_grad():
                reference_N, _ = answer_logprobs(self.reference, laid, dtype=self.dtype)
        logprobs_N, entropy_N = answer_logprobs(
            self.model, laid, dtype=self.dtype, entropy_gradient=self.terms.entropy_gradient
        )
        return self.terms.loss(
            laid.line,
            logprobs_N,
            entropy_N,
            old_N=_of(known.old, batch),
            whole_N=_of(known.whole, batch),
            reference_N=reference_N,
            sums=sums,
        )

    def _clipped_norm(self) -> float | None:
        """Global gradient norm before clipping to the maximum; None when it is not finite."""
        norm = torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), self.settings.max_grad_norm
        ).item()
        return norm if np.isfinite(norm) else None


def _of(per_row: list[torch.Tensor] | None, batch: Sequence[int]) -> torch.Tensor | None:
    """The rows of a micro-batch in a line."""
    return None if per_row is None else torch.cat([per_row[index] for index in batch])


def _finite(metrics: Metrics) -> Metrics:
    """A message carries finite numbers only; what is not finite is told as missing."""
    return {k: v if v is not None and np.isfinite(v) else None for k, v in metrics.items()}
