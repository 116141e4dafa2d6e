"""Sampling: the right frequencies, the right log-probabilities, from a row's own random numbers."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.rollout.sampling import choose, draw, inverse_cdf, mix, uniforms

LOGITS = torch.tensor([2.0, 1.0, 0.0])


def splitmix64(x: int) -> int:
    """The published finaliser in plain integers."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
    return x ^ (x >> 31)


@given(st.integers(0, 2**63 - 1), st.integers(0, 10_000))
def test_random_numbers_are_those_of_splitmix64(seed: int, step: int):
    seeds, steps = torch.tensor([seed]), torch.tensor([step])

    mixed = int(mix(seeds)[0]) % 2**64
    number = float(uniforms(seeds, steps)[0])

    assert mixed == splitmix64(seed)
    expected = splitmix64((mixed + (step + 1) * 0x9E3779B97F4A7C15) % 2**64) >> 11
    assert number == expected / 2**53


def test_random_numbers_of_neighbouring_seeds_and_steps_are_uniform_and_unrelated():
    seeds, steps = torch.meshgrid(torch.arange(300), torch.arange(300), indexing="ij")

    u = uniforms(seeds.flatten(), steps.flatten()).reshape(300, 300).numpy()

    assert len(np.unique(u)) == 90_000
    counts, _ = np.histogram(u, bins=100, range=(0, 1))
    assert ((counts - 900) ** 2 / 900).sum() < 149  # chi-square, 99 degrees of freedom, p = 0.001
    assert abs(np.corrcoef(u[:-1].ravel(), u[1:].ravel())[0, 1]) < 0.015
    assert abs(np.corrcoef(u[:, :-1].ravel(), u[:, 1:].ravel())[0, 1]) < 0.015


def test_temperature_divides_the_logits_before_the_softmax():
    ids, logprobs = draw(
        LOGITS[None], torch.tensor([0.6]), torch.tensor([0.0], dtype=torch.float64)
    )

    assert int(ids[0]) == 0
    assert float(logprobs[0]) == pytest.approx(-0.203, abs=5e-4)


def test_greedy_rows_report_the_distribution_of_temperature_one():
    ids, logprobs = choose(
        LOGITS[None], torch.zeros(1), torch.tensor([1]), torch.tensor([0]), greedy_rows=1
    )

    assert int(ids[0]) == 0
    assert float(logprobs[0]) == pytest.approx(2 - math.log(math.e**2 + math.e + 1), abs=1e-6)


@pytest.mark.parametrize("temperature", [0.3, 0.6, 1.0, 1.7])
def test_sampling_frequencies_are_those_of_the_distribution(temperature: float):
    rows = 40_000
    logits = torch.tensor([1.5, 0.2, -0.7, 0.0, 2.0, -1.0, 0.9, float("-inf")])
    expected = torch.softmax(logits.double() / temperature, -1).numpy() * rows

    ids, logprobs = choose(
        logits.expand(rows, -1),
        torch.full((rows,), temperature),
        torch.arange(rows) * 7919 + 13,
        torch.arange(rows) % 50,
        greedy_rows=0,
    )

    counts = np.bincount(ids.numpy(), minlength=8)
    assert counts[7] == 0
    chi_square = ((counts[:7] - expected[:7]) ** 2 / expected[:7]).sum()
    assert chi_square < 22.5  # 6 degrees of freedom, p = 0.001
    assert np.allclose(logprobs.numpy(), np.log(expected / rows + 1e-300)[ids.numpy()], atol=1e-5)


@given(
    st.lists(st.sampled_from([0.0, 1e-45, 1e-30, 1e-8, 0.1, 0.5, 1.0]), min_size=1, max_size=30),
    st.sampled_from([0.0, 2.0**-53, 0.1, 0.5, 0.999999, 1 - 2.0**-53]),
)
@settings(max_examples=300)
def test_an_id_of_probability_zero_is_never_sampled(weights: list[float], u: float):
    probabilities = torch.tensor([[*weights, 0.0, 0.25, 0.0]], dtype=torch.float32)

    ids = inverse_cdf(probabilities, torch.tensor([u], dtype=torch.float64))

    assert probabilities[0, ids[0]] > 0


def test_a_mixed_batch_samples_each_row_as_a_pure_one_would():
    logits = torch.randn(6, 20, generator=torch.Generator().manual_seed(3))
    temperature = torch.tensor([0.0, 1.0, 0.7, 0.0, 1.3, 1.0])
    seeds, steps = torch.arange(6) + 5, torch.arange(6)

    ids, logprobs = choose(logits, temperature, seeds, steps, greedy_rows=2)

    for row in range(6):
        one = slice(row, row + 1)
        alone = choose(
            logits[one], temperature[one], seeds[one], steps[one],
            greedy_rows=int(temperature[row] == 0),
        )  # fmt: skip
        assert (int(ids[row]), float(logprobs[row])) == (int(alone[0]), float(alone[1]))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_give_no_finite_logprob(bad: float, temperature: float):
    logits = torch.tensor([[0.0, bad, 1.0], [0.0, 1.0, 2.0]])

    _, logprobs = choose(
        logits, torch.full((2,), temperature), torch.tensor([1, 2]), torch.tensor([0, 0]),
        greedy_rows=2 if temperature == 0 else 0,
    )  # fmt: skip

    assert logprobs.isfinite().tolist() == [False, True]
