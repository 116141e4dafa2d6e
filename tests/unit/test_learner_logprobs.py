"""Log-probabilities of chosen tokens: as log_softmax, gradients included, without its memory."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from learner.layout import lay_out
from learner.logprobs import chosen_logprobs
from learner.model import answer_logprobs, load_model
from tests.learning import a_model, a_row
from tests.rollout_models import CONFIGS
from tests.rollout_models import a_model as a_rollout_model


def a_problem(tokens=23, hidden=7, vocabulary=19):
    generator = torch.Generator().manual_seed(0)
    hidden_NH = torch.randn(tokens, hidden, generator=generator, requires_grad=True)
    head_VH = torch.randn(vocabulary, hidden, generator=generator, requires_grad=True)
    chosen_N = torch.randint(0, vocabulary, (tokens,), generator=generator)
    temperature_N = torch.rand(tokens, generator=generator) + 0.5
    upstream_N = torch.randn(tokens, generator=generator)
    return hidden_NH, head_VH, chosen_N, temperature_N, upstream_N


@pytest.mark.parametrize("chunk_elements", [1, 19 * 5, 10**9])
def test_gradients_of_the_entropy_equal_those_of_log_softmax_for_any_chunk(chunk_elements):
    hidden_NH, head_VH, chosen_N, temperature_N, upstream_N = a_problem()
    plain_NV = torch.log_softmax(hidden_NH @ head_VH.T / temperature_N[:, None], dim=-1)
    chosen_plain_N = plain_NV.gather(1, chosen_N[:, None]).squeeze(1)
    entropy_plain_N = -(plain_NV.exp() * plain_NV).sum(-1)
    both = (chosen_plain_N * upstream_N + entropy_plain_N * upstream_N.flip(0)).sum()
    expected = torch.autograd.grad(both, [hidden_NH, head_VH])

    logprobs_N, entropy_N = chosen_logprobs(
        hidden_NH, head_VH, chosen_N, temperature_N, chunk_elements=chunk_elements,
        entropy_gradient=True,
    )  # fmt: skip
    found = (logprobs_N * upstream_N + entropy_N * upstream_N.flip(0)).sum()

    for grad, wanted in zip(
        torch.autograd.grad(found, [hidden_NH, head_VH]), expected, strict=True
    ):
        assert torch.allclose(grad, wanted, atol=5e-5)


@pytest.mark.parametrize("chunk_elements", [1, 19 * 5, 10**9])
def test_values_and_gradients_equal_log_softmax_for_any_chunk(chunk_elements):
    hidden_NH, head_VH, chosen_N, temperature_N, upstream_N = a_problem()
    plain_NV = torch.log_softmax(hidden_NH @ head_VH.T / temperature_N[:, None], dim=-1)
    expected_N = plain_NV.gather(1, chosen_N[:, None]).squeeze(1)
    expected_grads = torch.autograd.grad((expected_N * upstream_N).sum(), [hidden_NH, head_VH])

    logprobs_N, entropy_N = chosen_logprobs(
        hidden_NH, head_VH, chosen_N, temperature_N, chunk_elements=chunk_elements
    )
    grads = torch.autograd.grad((logprobs_N * upstream_N).sum(), [hidden_NH, head_VH])

    assert torch.allclose(logprobs_N, expected_N, atol=1e-6)
    assert torch.allclose(entropy_N, -(plain_NV.exp() * plain_NV).sum(-1), atol=1e-5)
    for grad, expected in zip(grads, expected_grads, strict=True):
        assert torch.allclose(grad, expected, atol=1e-5)


@pytest.mark.parametrize("chunk_elements", [19 * 5, 10**9])
@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_gradients_asked_for_twice_come_out_the_same(entropy_gradient, chunk_elements):
    # The first time uses up the logits that forward left.
    hidden_NH, head_VH, chosen_N, temperature_N, upstream_N = a_problem()
    logprobs_N, entropy_N = chosen_logprobs(
        hidden_NH, head_VH, chosen_N, temperature_N, chunk_elements=chunk_elements,
        entropy_gradient=entropy_gradient,
    )  # fmt: skip
    loss = ((logprobs_N + entropy_N) * upstream_N).sum()

    first = torch.autograd.grad(loss, [hidden_NH, head_VH], retain_graph=True)
    second = torch.autograd.grad(loss, [hidden_NH, head_VH])

    assert all(torch.equal(*both) for both in zip(first, second, strict=True))


def test_a_token_that_cannot_be_chosen_leaves_everything_else_as_without_it():
    hidden_NH, head_VH, _, temperature_N, _ = a_problem()
    hidden_NH = hidden_NH.detach().abs() + 0.1
    impossible_VH = torch.cat([head_VH, torch.full((1, head_VH.shape[1]), -torch.inf)]).detach()
    chosen_N = torch.arange(len(hidden_NH)) % len(head_VH)

    without = chosen_logprobs(hidden_NH, head_VH.detach(), chosen_N, temperature_N)
    found = chosen_logprobs(hidden_NH, impossible_VH, chosen_N, temperature_N)
    chosen = chosen_logprobs(hidden_NH, impossible_VH, chosen_N * 0 + len(head_VH), temperature_N)

    for values, wanted in zip(found, without, strict=True):
        assert torch.allclose(values, wanted, atol=1e-6)
    assert (chosen[0] == -torch.inf).all(), "not a large number, which a ratio would take for one"


@pytest.mark.parametrize(("chunk_elements", "products"), [(10**9, 2), (19 * 5, 5 * 2 + 4)])
def test_logits_of_the_last_chunk_are_not_made_again(chunk_elements, products):
    hidden_NH, head_VH, chosen_N, temperature_N, _ = a_problem()
    logprobs_N, _ = chosen_logprobs(
        hidden_NH, head_VH, chosen_N, temperature_N, chunk_elements=chunk_elements
    )

    with torch.profiler.profile() as profile:
        logprobs_N.sum().backward()

    calls = {event.key: event.count for event in profile.key_averages()}
    assert calls["aten::mm"] + calls["aten::addmm_"] == products


def test_all_tokens_times_vocabulary_never_exists():
    tokens, vocabulary, limit = 512, 4096, 4096 * 16
    hidden_NH = torch.randn(tokens, 8, requires_grad=True)
    head_VH = torch.randn(vocabulary, 8, requires_grad=True)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                largest = max(largest, result.numel())
            return result

    with Watch():
        logprobs_N, _ = chosen_logprobs(
            hidden_NH, head_VH, torch.zeros(tokens, dtype=torch.int64), torch.ones(tokens),
            chunk_elements=limit,
        )  # fmt: skip
        logprobs_N.sum().backward()

    assert vocabulary * 8 <= largest <= limit


def test_d6_temperature_divides_logits_before_the_softmax():
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    logprobs_N, _ = chosen_logprobs(logits, torch.eye(3), torch.tensor([0]), torch.tensor([0.6]))

    assert logprobs_N.item() == pytest.approx(-0.203, abs=2e-3)


def rows_with(*pairs: tuple[list[int], list[int]]):
    return [
        replace(
            a_row(len(answer), prompt=len(prompt)),
            prompt_ids_P=np.array(prompt, np.int32),
            answer_ids_T=np.array(answer, np.int32),
        )
        for prompt, answer in pairs
    ]


DIFFERENT = ([4, 5, 6], [7, 8]), ([9], [10, 11, 12, 13]), ([3] * 8, [5]), ([8], [7])
SHARING = (
    ([4, 5, 6], [7, 9, 3]),
    ([7] * 4, [5]),
    ([7] * 4, [6, 6]),
    ([4, 5, 6], [8]),
    ([7] * 4, [4]),
)
"""Prompts of several rows, not side by side, one of them also with a row above."""


@pytest.mark.parametrize("family", CONFIGS)
def test_packed_rows_are_scored_as_if_each_were_alone(tmp_path, family):
    # Without a window, transformers' own full attention; with one, its own mask.
    a_rollout_model(family).save_pretrained(tmp_path)
    model = load_model(tmp_path, device="cpu", seed=0)
    own = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="sdpa").eval()
    rows = rows_with(*DIFFERENT, *SHARING)
    expected = []
    for row in rows:
        ids = torch.tensor([*row.prompt_ids_P.tolist(), *row.answer_ids_T.tolist()])
        every = torch.log_softmax(own(ids[None]).logits[0], dim=-1)
        first = len(row.prompt_ids_P) - 1
        expected += [every[first + t, token].item() for t, token in enumerate(row.answer_ids_T)]

    tokens = sum(row.tokens for row in rows[: len(DIFFERENT)])
    for some, wanted in (
        (rows, expected),
        (rows[:1], expected[:2]),
        (rows[len(DIFFERENT) :], expected[tokens:]),
    ):
        laid = lay_out(some, np.ones(len(some)), torch.device("cpu"))
        logprobs_N, _ = answer_logprobs(model, laid, dtype=torch.float32)
        assert logprobs_N.tolist() == pytest.approx(wanted, abs=1e-5)


def test_gradients_of_packed_rows_equal_those_of_each_row_alone(tmp_path):
    model = a_model(tmp_path)
    rows = rows_with(*DIFFERENT, *SHARING)

    def gradients(batches):
        model.zero_grad()
        for some in batches:
            laid = lay_out(some, np.ones(len(some)), torch.device("cpu"))
            logprobs_N, _ = answer_logprobs(model, laid, dtype=torch.float32)
            logprobs_N.square().sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    for packed, alone in zip(gradients([rows]), gradients([[r] for r in rows]), strict=True):
        assert torch.allclose(packed, alone, atol=1e-4)


def test_a_prompt_of_several_rows_goes_through_the_model_once():
    rows = rows_with(*SHARING)

    laid = lay_out(rows, np.ones(len(rows)), torch.device("cpu"))

    # Of each prompt all but its last token once; of each row one token for each of its answer's.
    assert len(laid.packed.input_ids_S) == 2 + 3 + sum(row.tokens for row in rows)


def test_bfloat16_computes_in_bfloat16_and_keeps_float32_gradients(tmp_path):
    model = a_model(tmp_path)
    laid = lay_out([a_row(6, prompt=3), a_row(4, prompt=2)], np.ones(2), torch.device("cpu"))

    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        logprobs_N, _ = answer_logprobs(model, laid, dtype=dtype)
        model.zero_grad()
        logprobs_N.sum().backward()
        grad = model.model.layers[0].mlp.up_proj.weight.grad
        assert logprobs_N.dtype == grad.dtype == torch.float32
        found[dtype] = (logprobs_N.detach(), grad.clone())

    exact, low = found[torch.float32], found[torch.bfloat16]
    assert not torch.equal(exact[0], low[0])
    assert torch.allclose(exact[0], low[0], atol=0.2)
    assert torch.nn.functional.cosine_similarity(exact[1].flatten(), low[1].flatten(), dim=0) > 0.99
