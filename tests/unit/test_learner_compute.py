"""Ways to compute the same: recomputed or compiled layers change time and memory, never the step."""

import copy
import shutil
import threading

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from broker.errors import BadConfiguration
from learner.compute import plain_layers, prepare_layers
from learner.settings import LearnerSettings
from learner.trainer import Trainer
from tests.learning import a_model, ragged_rows


def a_trainer(folder, **changes) -> Trainer:
    settings = LearnerSettings.model_validate(
        {"learning_rate": 1e-2, "micro_batch_tokens": 64} | changes
    )
    return Trainer(a_model(folder), settings, dtype=torch.float32, interrupted=threading.Event())


def weights(trainer: Trainer) -> list[torch.Tensor]:
    return [p.detach().clone() for p in trainer.model.parameters()]


def test_recomputed_activations_give_the_same_step_to_the_bit(tmp_path):
    plain, recomputed = a_trainer(tmp_path), a_trainer(tmp_path, activation_checkpointing=True)

    for trainer in (plain, recomputed):
        trainer.step(ragged_rows(1))

    assert recomputed.weights() == plain.weights()


def test_recomputed_activations_are_not_kept(tmp_path):
    kept = {}
    for checkpointing in (False, True):
        trainer = a_trainer(
            tmp_path, activation_checkpointing=checkpointing, micro_batch_tokens=4096
        )
        own = {p.data_ptr() for p in trainer.model.parameters()}
        total = 0

        def count(tensor: torch.Tensor, own=own) -> torch.Tensor:
            nonlocal total
            if tensor.data_ptr() not in own:
                total += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            trainer.step(ragged_rows(2))
        kept[checkpointing] = total

    # What the output embedding keeps is the same in both; the layers keep one activation each.
    assert kept[True] < kept[False] / 3


@pytest.mark.parametrize("setting", ["activation_checkpointing", "compile"])
def test_a_model_whose_layers_are_not_found_is_refused_not_computed_otherwise(setting):
    model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=8, n_embd=8, n_layer=1, n_head=1))

    with pytest.raises(BadConfiguration, match="GPT2LMHeadModel has no `layers`"):
        prepare_layers(model, LearnerSettings.model_validate({setting: True}))

    prepare_layers(model, LearnerSettings())


def test_a_copy_with_plain_layers_computes_with_weights_of_its_own(tmp_path):
    trainer = a_trainer(tmp_path, activation_checkpointing=True)
    ids = torch.arange(3, 11)[None]
    before = trainer.model(ids).logits
    other = copy.deepcopy(trainer.model)
    plain_layers(other)

    with torch.no_grad():
        for parameter in trainer.model.model.layers.parameters():
            parameter.zero_()

    assert torch.equal(other(ids).logits, before)
    assert not torch.equal(trainer.model(ids).logits, before)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on CPUs"
)
@pytest.mark.filterwarnings("ignore")
def test_compiled_layers_give_the_same_step(tmp_path):
    plain, compiled = a_trainer(tmp_path), a_trainer(tmp_path, compile=True)

    for trainer in (plain, compiled):
        trainer.step(ragged_rows(1))

    for ours, theirs in zip(weights(plain), weights(compiled), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)
