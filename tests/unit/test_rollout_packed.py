"""Packed layers say what the plain ones say, whatever the family, and the plain weights are let go."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests.rollout_models import (
    CONFIGS,
    SPOILT,
    a_folder,
    a_job,
    a_model,
    answers,
    check_against,
    decode,
    own_logprobs,
    save_weights,
    spoil,
)
from workers.rollout import packed
from workers.rollout.decoder import Decoder, Ticket
from workers.rollout.engine import BadWeights
from workers.rollout.model import build_model
from workers.rollout.packed import PackedLinear, install, pack_linears, planned_rows, stage
from workers.rollout.torch_engine import TorchEngine

torch.set_num_threads(1)
CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(
    not packed._can_pack(CPU, torch.float32), reason="this processor has no packed products"
)
PROMPTS = [[5], [6, 7], [8, 9, 10, 11, 12, 13, 14, 15, 16], [17, 18, 19]]


def a_packed(folder: Path, family: str) -> Decoder:
    model = build_model(a_folder(folder, family), device=CPU, dtype=torch.float32)
    pack_linears(model, smallest=1)
    return Decoder(model, frozenset(), max_rows=5)


def put(decoder: Decoder, file: Path, version: int) -> None:
    install(decoder.model, stage(decoder.model, file))
    decoder.set_version(version)


@pytest.mark.parametrize("family", CONFIGS)
def test_answers_agree_with_the_full_forward(tmp_path: Path, family: str):
    model, decoder = a_model(family), a_packed(tmp_path, family)
    put(decoder, save_weights(model, tmp_path / "w"), 0)
    jobs = [
        a_job(prompt, (10 * i, 10 * i + 1), temperature=float(i % 2), max_tokens=5 + 4 * i)
        for i, prompt in enumerate(PROMPTS)
    ]

    results = decode(decoder, jobs)

    for job, result in zip(jobs, results, strict=True):
        for answer in answers(result):
            assert len(answer.token_ids) == job.sampling.max_tokens
            expected = own_logprobs(
                model, job.prompt_ids, answer.token_ids, job.sampling.temperature or 1.0
            )
            chosen = expected[np.arange(len(answer.token_ids)), answer.token_ids]
            np.testing.assert_allclose(answer.logprobs, chosen, atol=1e-4)


def test_new_weights_are_in_force_from_the_next_token_on(tmp_path: Path):
    models = [a_model(seed=seed) for seed in range(2)]
    files = [save_weights(m, tmp_path / f"w{i}") for i, m in enumerate(models)]
    decoder = a_packed(tmp_path, "llama")
    put(decoder, files[0], 0)
    ticket = Ticket(a_job(seeds=(1,), temperature=0.0, max_tokens=6))
    decoder.submit(ticket)

    with torch.inference_mode():
        for _ in range(3):
            decoder.advance()
        put(decoder, files[1], 1)
        done = dict(found for _ in range(3) for found in decoder.advance())

    (answer,) = answers(done[ticket])
    assert [(s.version, s.first, s.end) for s in answer.spans] == [(0, 0, 3), (1, 3, 6)]
    first = own_logprobs(models[0], ticket.job.prompt_ids, answer.token_ids)
    assert answer.token_ids[:3].tolist() == first[:3].argmax(-1).tolist()
    # The cache of the first tokens is the old weights'; other tokens than theirs show the new ones at work.
    assert not np.allclose(answer.logprobs[3:], first[3:].max(-1), atol=1e-3)


def storage_bytes(model: nn.Module) -> int:
    return sum(p.untyped_storage().nbytes() for p in model.parameters())


@pytest.mark.parametrize("family", ["llama", "llama-tied", "qwen2"])
def test_only_the_embedding_is_kept_as_it_was(tmp_path: Path, family: str):
    model = a_model(family)
    decoder = a_packed(tmp_path, family)

    put(decoder, save_weights(model, tmp_path / "w"), 0)

    layers = [m for m in decoder.model.modules() if isinstance(m, PackedLinear)]
    assert len(layers) == sum(isinstance(m, nn.Linear) for m in model.modules())
    whole = [p for p in decoder.model.parameters() if p.ndim == 2 and p.stride() != (0, 0)]
    assert [p.shape for p in whole] == [model.get_input_embeddings().weight.shape]
    assert storage_bytes(decoder.model) < storage_bytes(model) / 2


def test_layers_that_stay_in_the_cache_are_left_alone(tmp_path: Path):
    model = build_model(a_folder(tmp_path), device=CPU, dtype=torch.float32)
    large = nn.Sequential(nn.Linear(320, 320), nn.Linear(8, 320))

    pack_linears(model)
    pack_linears(large)

    assert not any(isinstance(m, PackedLinear) for m in model.modules())
    assert [type(m) for m in large] == [PackedLinear, nn.Linear]


def test_other_types_than_float32_are_left_alone():
    model = nn.Sequential(nn.Linear(320, 320)).to(torch.bfloat16)

    pack_linears(model)

    assert type(model[0]) is nn.Linear


@pytest.mark.parametrize("how", SPOILT)
def test_weights_that_do_not_fit_change_nothing(tmp_path: Path, how: str):
    model, decoder = a_model(), a_packed(tmp_path, "llama")
    good = save_weights(model, tmp_path / "w")
    put(decoder, good, 0)
    spoil(good, tmp_path / "bad", how)

    with pytest.raises(BadWeights):
        stage(decoder.model, tmp_path / "bad")

    job = a_job(seeds=(1,), temperature=0.0)
    (answer,) = answers(decode(decoder, [job])[0])
    expected = own_logprobs(model, job.prompt_ids, answer.token_ids)
    assert answer.token_ids.tolist() == expected.argmax(-1).tolist()


async def test_an_engine_packs_a_model_that_is_large_enough(tmp_path: Path):
    model = a_model("llama-large")
    engine = TorchEngine(
        a_folder(tmp_path, "llama-large"), device="cpu", dtype="float32", threads=1, max_rows=4
    )
    await engine.load(save_weights(model, tmp_path / "w"), 0)
    job = a_job(seeds=(1, 2))

    (result,) = await engine.generate([job])

    await engine.close()
    for answer in answers(result):
        check_against(model, job, answer)
    layers = [type(m) for m in engine._decoder.model.modules()]
    assert layers.count(PackedLinear) == 2 * 3  # the MLP's three matrices


@pytest.mark.parametrize("shape", [(1, 16), (17,), (3, 11), (1, 1000), (0,)])
def test_a_layer_takes_any_number_of_rows(shape: tuple[int, ...]):
    plain = nn.Linear(12, 7)
    layer = PackedLinear(plain)
    layer.packed = torch.ops.mkldnn._reorder_linear_weight(plain.weight.detach(), packed.ROWS)
    values = torch.randn(*shape, 12)
    computed: list[int] = []
    product = layer._product
    layer._product = lambda line: computed.append(line.shape[:-1].numel()) or product(line)

    with torch.no_grad():
        found, expected = layer(values), plain(values)

    assert found.shape == expected.shape
    assert computed == [planned_rows(values.shape[:-1].numel())]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_few_numbers_of_rows_are_planned_for():
    planned = [planned_rows(rows) for rows in range(1, 4097)]

    assert all(rows <= n <= rows * 1.125 for rows, n in enumerate(planned, start=1))
    assert planned[:16] == list(range(1, 17))
    assert len(set(planned)) <= 15 + 8 * 9


class WithBuffer(nn.Module):
    """A layer that is packed, and numbers that are no parameter, as in some families' gates."""

    def __init__(self, bias: float) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("correction", torch.full((3,), bias))


def test_a_buffer_comes_with_the_weights(tmp_path: Path):
    save_file(WithBuffer(2.0).state_dict(), tmp_path / "w")
    model = WithBuffer(1.0)
    pack_linears(model, smallest=1)

    install(model, stage(model, tmp_path / "w"))

    assert model.correction.tolist() == [2.0, 2.0, 2.0]


def test_weights_in_force_do_not_depend_on_their_file(tmp_path: Path):
    model, decoder = a_model("qwen2"), a_packed(tmp_path, "qwen2")
    file = save_weights(model, tmp_path / "w")
    staged = stage(decoder.model, file)
    with file.open("r+b") as data:
        data.seek(8 + int.from_bytes(data.read(8), "little"))
        data.write(bytes(file.stat().st_size - data.tell()))
    install(decoder.model, staged)
    decoder.set_version(0)
    job = a_job(seeds=(1,), temperature=0.0)

    (answer,) = answers(decode(decoder, [job])[0])

    expected = own_logprobs(model, job.prompt_ids, answer.token_ids)
    assert answer.token_ids.tolist() == expected.argmax(-1).tolist()


def test_a_type_that_cannot_be_checked_is_refused(tmp_path: Path):
    save_file({"weight": torch.zeros(3, 4).to(torch.float8_e5m2)}, tmp_path / "w")

    with pytest.raises(BadWeights, match=r"weight is torch\.float8_e5m2; expected one of"):
        stage(nn.Linear(4, 3, bias=False), tmp_path / "w")
