"""What two sides of a transfer compare."""

import pytest
import torch

from broker import fingerprint as module
from broker.fingerprint import fingerprint


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_one_bit_and_an_exchange_of_two_values_are_told(dtype: torch.dtype):
    weights = torch.randn(7, 5, generator=torch.Generator().manual_seed(1)).to(dtype)
    same, bit, exchanged = weights.clone(), weights.clone(), weights.clone()
    bit.view(torch.uint8)[3, 2] ^= 1
    exchanged[0, 0], exchanged[6, 4] = weights[6, 4], weights[0, 0]

    assert fingerprint(same) == fingerprint(weights)
    assert fingerprint(bit) != fingerprint(weights)
    assert fingerprint(exchanged) != fingerprint(weights)
    assert fingerprint(-torch.zeros(3, dtype=dtype)) != fingerprint(torch.zeros(3, dtype=dtype))


def test_it_is_the_sum_it_says_however_it_is_cut(monkeypatch: pytest.MonkeyPatch):
    weights = torch.randn(101)
    bits = weights.view(torch.int32).tolist()
    expected = sum(value * (at + 1) for at, value in enumerate(bits)) % 2**64
    whole = fingerprint(weights)

    monkeypatch.setattr(module, "CHUNK", 10)

    assert (whole, fingerprint(weights)) == (expected, expected)
