"""Signals beside the tokens: what transformers itself gives, for who asks, at no cost to others."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from broker.arrays import unpack
from tests.rollout_models import (
    CONFIGS,
    END,
    VOCABULARY,
    a_decoder,
    a_folder,
    a_job,
    a_model,
    answers,
    decode,
    save_weights,
)
from tests.rollout_scene import a_scene, a_train_request
from workers.rollout.engine import EngineError
from workers.rollout.forward import Forward
from workers.rollout.signals import Recorder, self_certainty, token_entropy

torch.set_num_threads(1)
ALL = ("entropy", "self_certainty", "hidden")


def test_ex_b4_self_certainty_and_entropy_of_a_known_distribution():
    logits = torch.tensor([[2.0, 0.0, 0.0, 0.0]])

    assert self_certainty(logits).item() == pytest.approx(0.45446, abs=1e-5)
    assert token_entropy(logits, torch.ones(1)).item() == pytest.approx(0.91828, abs=1e-5)


def test_entropy_is_of_the_distribution_sampled_from_and_bears_masked_logits():
    logits = torch.tensor([[2.0, 1.0, float("-inf")], [2.0, 1.0, 0.0]])

    found = token_entropy(logits, torch.tensor([0.5, 0.0]))

    for value, p in zip(
        found,
        (torch.softmax(torch.tensor([4.0, 2.0]), 0), torch.softmax(logits[1], 0)),
        strict=True,
    ):
        assert value.item() == pytest.approx(-(p * p.log()).sum().item(), abs=1e-6)


def full_forward(
    model: PreTrainedModel, prompt: np.ndarray, answer: np.ndarray, temperature: float
):
    """(T, V) logits of each next token, and (N + 1, T, H) hidden states they come from."""
    ids = torch.tensor(np.concatenate([prompt, answer]), dtype=torch.int64)[None]
    with torch.no_grad():
        found = model(input_ids=ids, use_cache=False, output_hidden_states=True)
    part = slice(len(prompt) - 1, -1)
    return found.logits[0, part], torch.stack([h[0, part] for h in found.hidden_states])


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_signals_agree_with_the_full_forward_while_rows_end_and_move(tmp_path: Path, family: str):
    model = a_model(family)
    weights = save_weights(model, tmp_path / "w")
    decoder = a_decoder(a_folder(tmp_path, family), weights, max_rows=5, signals=ALL)
    prompts = [[5], [6, 7, 8, 9], [10, 11], [12, 13, 14]]
    jobs = [
        a_job(p, (10 * i, 10 * i + 1), temperature=0.6 + 0.2 * i, max_tokens=4 + 6 * (i % 3))
        for i, p in enumerate(prompts)
    ]

    for job, result in zip(jobs, decode(decoder, jobs), strict=True):
        for answer in answers(result):
            temperature = job.sampling.temperature
            logits, hidden = full_forward(model, job.prompt_ids, answer.token_ids, temperature)
            logp = torch.log_softmax(logits / temperature, -1)
            plain = torch.log_softmax(logits, -1)
            expected = {
                "entropy": -(logp.exp() * logp).sum(-1),
                "self_certainty": -plain.mean(-1) - np.log(VOCABULARY),
                "hidden": hidden.mean(1),
            }
            assert answer.signals.keys() == expected.keys()
            for name, value in expected.items():
                np.testing.assert_allclose(answer.signals[name], value.numpy(), atol=1e-4)


def test_who_does_not_ask_gets_nothing_and_the_model_is_asked_for_nothing(tmp_path: Path):
    model = a_model()
    decoder = a_decoder(a_folder(tmp_path), save_weights(model, tmp_path / "w"))
    asked: list[dict] = []
    decoder.model.register_forward_pre_hook(
        lambda _module, _args, options: asked.append(options), with_kwargs=True
    )

    (result,) = decode(decoder, [a_job(seeds=(1, 2))])

    assert all(answer.signals == {} for answer in answers(result))
    assert asked
    assert not any(options.get("output_hidden_states") for options in asked)


def test_a_row_that_takes_anothers_place_starts_from_nothing():
    recorder = Recorder(["hidden"], device=torch.device("cpu"))
    recorder.begin(0, 2, 4)
    state = [torch.ones(2, 1, 3), torch.full((2, 1, 3), 2.0)]
    recorder.record(torch.zeros(2, dtype=torch.int64), torch.zeros(2, 5), torch.ones(2), state)
    recorder.begin(1, 2, 9)
    recorder.record(torch.zeros(2, dtype=torch.int64), torch.zeros(2, 5), torch.ones(2), state)

    assert recorder.taken(0, 2)["hidden"].tolist() == [[1.0] * 3, [2.0] * 3]
    assert recorder.taken(1, 1)["hidden"].tolist() == [[1.0] * 3, [2.0] * 3]


async def test_a_worker_that_is_told_to_sends_signals_with_every_generation(tmp_path: Path):
    scene = await a_scene(tmp_path)
    await scene.publish_weights(0)
    await scene.bus.publish(a_train_request(1))

    async with scene.running(signals=ALL):
        (event,) = await scene.generated(1)

    layers, hidden = CONFIGS["llama"].num_hidden_layers, CONFIGS["llama"].hidden_size
    for generation in event.generations:
        assert set(generation.signals) == set(ALL)
        tokens = len(generation.token_ids)
        assert unpack(generation.signals["entropy"]).shape == (tokens,)
        assert unpack(generation.signals["self_certainty"]).shape == (tokens,)
        assert unpack(generation.signals["hidden"]).shape == (layers + 1, hidden)
        assert tokens == 8 or unpack(generation.token_ids)[-1] == END


async def test_one_forward_over_an_answer_gives_what_was_recorded_while_it_was_sampled(
    tmp_path: Path,
):
    folder, weights = (
        a_folder(tmp_path, "llama-tied"),
        save_weights(a_model("llama-tied"), tmp_path / "w"),
    )
    job = a_job([5, 6, 7], (1, 2, 3), temperature=0.6)
    (result,) = decode(a_decoder(folder, weights, version=4, signals=ALL), [job])
    forward = Forward(folder, device="cpu", dtype="float32", signals=ALL)
    await forward.put(weights, 4)
    await forward.put(save_weights(a_model("llama-tied", seed=1), tmp_path / "w5"), 5)

    for answer in answers(result):
        told = await forward.of(job, answer)

        assert told.keys() == answer.signals.keys()
        for name, recorded in answer.signals.items():
            np.testing.assert_allclose(told[name], recorded, atol=1e-4)


async def test_signals_of_a_version_that_is_forgotten_are_an_error(tmp_path: Path):
    folder, weights = a_folder(tmp_path), save_weights(a_model(), tmp_path / "w")
    job = a_job()
    (result,) = decode(a_decoder(folder, weights, version=4), [job])
    forward = Forward(folder, device="cpu", dtype="float32", signals=ALL)
    await forward.put(weights, 4)
    forward.keep({5, None})

    with pytest.raises(EngineError, match="version 4"):
        await forward.of(job, answers(result)[0])


async def test_beside_the_versions_put_no_weights_are_held(tmp_path: Path):
    folder, weights = a_folder(tmp_path), save_weights(a_model(), tmp_path / "w")

    forward = Forward(folder, device="cpu", dtype="float32", signals=ALL)
    empty = held_bytes(forward)
    await forward.put(weights, 4)

    assert empty < weights.stat().st_size / 10
    assert held_bytes(forward) == pytest.approx(weights.stat().st_size, rel=0.2)
    forward.keep({5})
    assert held_bytes(forward) == empty


def held_bytes(forward: Forward) -> int:
    found = tensors_in(vars(forward))
    return sum({t.data_ptr(): t.untyped_storage().nbytes() for t in found}.values())


def tensors_in(value: object) -> list[torch.Tensor]:
    match value:
        case torch.Tensor():
            return [value]
        case torch.nn.Module():
            return [*value.parameters(), *value.buffers()]
        case dict():
            return [tensor for inner in value.values() for tensor in tensors_in(inner)]
        case _:
            return []
