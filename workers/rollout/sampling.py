"""Sampling of the next token, every row by a random number of its own.

The number depends on the row's seed and the token's index alone, so that neither neighbours in the batch
nor the order of events changes an answer. Legend: B rows, V vocabulary.
"""

import torch
from torch import Tensor

# Constants of splitmix64 (Steele et al., 2014), as signed 64-bit numbers: torch wraps on overflow.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64


def _shift_right(x: Tensor, bits: int) -> Tensor:
    # Of int64, >> copies the sign bit; a hash needs zeros there.
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix(x: Tensor) -> Tensor:
    """A bijection of int64 that flips half of the output bits for each input bit (splitmix64)."""
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    return x ^ _shift_right(x, 31)


def uniforms(seeds: Tensor, steps: Tensor) -> Tensor:
    """A number in [0, 1) for token `steps` of the row with `seeds`; both (B,) int64, result float64.

    53 random bits. The seed is mixed first: neighbouring seeds give unrelated rows.
    """
    bits = mix(mix(seeds) + (steps + 1) * _GOLDEN)
    return _shift_right(bits, 11).to(torch.float64) * 2.0**-53


def inverse_cdf(probabilities: Tensor, u: Tensor) -> Tensor:
    """The id whose slice of [0, 1) holds u; (B, V) float32 and (B,) float64 -> (B,) int64.

    Never an id of probability zero: the first id whose cumulative sum exceeds the target is one that
    raised the sum. The target is kept below the total, where rounding could lift it to it.
    """
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    target = torch.minimum(u[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    ids = torch.searchsorted(cumulative, target, right=True).squeeze(1)
    # Only NaN gets past the end; its row is refused by its log-probability.
    return ids.clamp_(max=probabilities.shape[1] - 1)


def draw(logits: Tensor, temperature: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Ids sampled at a temperature > 0 and their log-probabilities in the distribution sampled from.

    logits (B, V) float32, temperature (B,) float32: it divides the logits before the softmax.
    """
    logprobs = torch.log_softmax(logits / temperature[:, None], dim=-1)
    ids = inverse_cdf(logprobs.exp(), u)
    return ids, logprobs.gather(1, ids[:, None]).squeeze(1)


def best(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest ids, and their log-probabilities at temperature 1 (at 0 all would be 0)."""
    ids = logits.argmax(-1)
    return ids, torch.log_softmax(logits, dim=-1).gather(1, ids[:, None]).squeeze(1)


def choose(
    logits: Tensor, temperature: Tensor, seeds: Tensor, steps: Tensor, *, greedy_rows: int
) -> tuple[Tensor, Tensor]:
    """Next ids (B,) int64 and log-probabilities (B,) float32; rows of temperature 0 take the likeliest.

    greedy_rows: how many rows have temperature 0, so that the usual pure batch costs nothing extra.
    A row whose logits are not finite gets a log-probability that is not finite.
    """
    rows = len(logits)
    if greedy_rows == rows:
        return best(logits)
    u = uniforms(seeds, steps)
    if greedy_rows == 0:
        return draw(logits, temperature, u)
    greedy = temperature == 0
    drawn, drawn_logprobs = draw(logits, torch.where(greedy, 1.0, temperature), u)
    likeliest, likeliest_logprobs = best(logits)
    return (
        torch.where(greedy, likeliest, drawn),
        torch.where(greedy, likeliest_logprobs, drawn_logprobs),
    )
