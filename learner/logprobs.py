"""Log-probabilities of chosen tokens from hidden states, without all tokens x vocabulary at once.

Legend: N chosen tokens, H hidden size, V vocabulary.
"""

from math import ceil
from typing import Any

import torch

CHUNK_ELEMENTS = 32 * 1024 * 1024
"""Logits held at once: 128 MiB in float32, and as much again for what is made of them, by each stream."""


class _ChosenLogprobs(torch.autograd.Function):
    """Logits are made chunk by chunk, and again in backward, where their gradient is known.

    Those of the last chunk, in many batches the only one, are kept for it.

    d logp / d logits = (one-hot(chosen) - p) / temperature, d entropy / d logits =
    -p (log p + entropy) / temperature, p = softmax.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: torch.Tensor,
        head_VH: torch.Tensor,
        chosen_N: torch.Tensor,
        temperature_N: torch.Tensor,
        chunk: int,
        entropy_gradient: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs_N = torch.empty(len(chosen_N), dtype=torch.float32, device=hidden_NH.device)
        entropy_N = torch.empty_like(logprobs_N)
        norms_N = torch.empty_like(logprobs_N)
        # Two buffers for all chunks: on a CPU fresh memory of this size comes page by page from the kernel.
        buffers = [_buffer(hidden_NH, head_VH, chunk) for _ in range(2)]
        for at in range(0, len(chosen_N), chunk):
            part = slice(at, at + chunk)
            out_CV, other_CV = (buffer[: len(chosen_N[part])] for buffer in buffers)
            logits_CV = _logits(hidden_NH[part], head_VH, temperature_N[part], out_CV)
            chosen_C = logits_CV.gather(1, chosen_N[part, None]).squeeze(1)
            highest_C = logits_CV.amax(dim=-1)
            unscaled_CV = torch.sub(logits_CV, highest_C[:, None], out=other_CV).exp_()
            scale_C = unscaled_CV.sum(-1)
            norm_C = highest_C + scale_C.log()
            norms_N[part] = norm_C
            logprobs_N[part] = chosen_C - norm_C
            # Entropy = logsumexp - E[logit]; -inf logits carry no probability, and 0 x inf is no number.
            finite_CV = logits_CV.clamp_(min=torch.finfo(torch.float32).min)
            expected_C = torch.bmm(unscaled_CV[:, None], finite_CV[..., None]).flatten() / scale_C
            entropy_N[part] = norm_C - expected_C
        ctx.save_for_backward(hidden_NH, head_VH, chosen_N, temperature_N, norms_N, entropy_N)
        ctx.chunk, ctx.entropy_gradient = chunk, entropy_gradient
        ctx.buffer = buffers[0]
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy_N)
        return logprobs_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden_NH, head_VH, chosen_N, temperature_N, norms_N, entropy_N = ctx.saved_tensors
        grad_N = grads[0] / temperature_N
        grad_entropy_N = grads[1] / temperature_N if ctx.entropy_gradient else None
        grad_hidden_NH = torch.empty_like(hidden_NH)
        grad_head_VH = torch.zeros_like(head_VH, dtype=torch.float32)
        # Forward left the last chunk's, once: what is made of them takes their place.
        buffer, ctx.buffer = ctx.buffer, None
        kept = buffer is not None
        if not kept:
            buffer = _buffer(hidden_NH, head_VH, ctx.chunk)
        for at in reversed(range(0, len(chosen_N), ctx.chunk)):
            part = slice(at, at + ctx.chunk)
            logits_CV = buffer[: len(chosen_N[part])]
            if not kept:
                _logits(hidden_NH[part], head_VH, temperature_N[part], logits_CV)
            kept = False
            log_p_CV = logits_CV.sub_(norms_N[part, None])
            if grad_entropy_N is None:
                slope_CV = log_p_CV.exp_().mul_(-grad_N[part, None])
            else:
                slope_CV = log_p_CV.exp()
                # -inf logits carry no probability: 0 x inf is 0 here.
                plogp_CV = log_p_CV.add_(entropy_N[part, None]).mul_(slope_CV).nan_to_num_(nan=0.0)
                slope_CV.mul_(-grad_N[part, None]).sub_(plogp_CV.mul_(grad_entropy_N[part, None]))
            slope_CV.scatter_add_(1, chosen_N[part, None], grad_N[part, None])
            slope_CV = slope_CV.to(hidden_NH.dtype)
            grad_hidden_NH[part] = slope_CV @ head_VH
            if slope_CV.dtype is torch.float32:
                grad_head_VH.addmm_(slope_CV.T, hidden_NH[part])
            else:
                grad_head_VH += slope_CV.T @ hidden_NH[part]
            del slope_CV  # or it would be there beside the next chunk's
        return grad_hidden_NH, grad_head_VH.to(head_VH.dtype), None, None, None, None


def _buffer(hidden_NH: torch.Tensor, head_VH: torch.Tensor, chunk: int) -> torch.Tensor:
    shape = min(chunk, len(hidden_NH)), len(head_VH)
    return torch.empty(shape, dtype=torch.float32, device=hidden_NH.device)


def _logits(
    hidden_CH: torch.Tensor,
    head_VH: torch.Tensor,
    temperature_C: torch.Tensor,
    out_CV: torch.Tensor,
) -> torch.Tensor:
    """(C, V) float32 logits divided by the temperature in force, in the place of `out_CV`."""
    if hidden_CH.dtype is torch.float32:
        torch.mm(hidden_CH, head_VH.T, out=out_CV)
    else:
        out_CV.copy_(hidden_CH @ head_VH.T)
    return out_CV.div_(temperature_C[:, None])


def chosen_logprobs(
    hidden_NH: torch.Tensor,
    head_VH: torch.Tensor,
    chosen_N: torch.Tensor,
    temperature_N: torch.Tensor,
    *,
    chunk_elements: int = CHUNK_ELEMENTS,
    entropy_gradient: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Natural-log probability of each chosen token, and the entropy it was chosen with (nats).

    hidden_NH: last hidden state before each token; head_VH: output embedding, same dtype;
    temperature_N divides the logits before the softmax, as the engine does when it samples.
    Returns two float32 (N,); the second carries gradients only with entropy_gradient.
    """
    most = max(1, chunk_elements // head_VH.shape[0])
    # Of even size: each chunk reads the whole output embedding, the smallest too.
    chunk = ceil(len(chosen_N) / max(1, ceil(len(chosen_N) / most))) or 1
    logprobs_N, entropy_N = _ChosenLogprobs.apply(  # pyright: ignore[reportGeneralTypeIssues]
        hidden_NH, head_VH, chosen_N, temperature_N, chunk, entropy_gradient
    )
    return logprobs_N, entropy_N
