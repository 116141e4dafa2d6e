"""The frozen model of the KL term, from a folder."""

import threading
from pathlib import Path

import pytest
import torch

from broker.errors import BadConfiguration
from learner.objective import KlToReference
from learner.reference import make_reference
from learner.settings import LearnerSettings
from learner.tiny import write_model_folder
from learner.trainer import Trainer
from tests.learning import TINY, a_model


def a_trainer(folder: Path) -> Trainer:
    return Trainer(
        a_model(folder), LearnerSettings(), dtype=torch.float32, interrupted=threading.Event()
    )


def the_term(path: Path) -> KlToReference:
    return KlToReference(name="k3", coefficient=0.1, path=path)


def test_a_reference_of_a_folder_has_its_weights_and_leaves_the_generator_alone(tmp_path: Path):
    trainer, other = a_trainer(tmp_path / "m"), a_model(tmp_path / "other", seed=7)
    other.save_pretrained(tmp_path / "other")
    torch.manual_seed(5)
    before = trainer.rng()

    found = make_reference(the_term(tmp_path / "other"), trainer, None)

    assert trainer.rng() == before
    for one, same in zip(found.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, same)
        assert not one.requires_grad


@pytest.mark.parametrize(
    ("weights", "characters", "complaint"),
    [
        (False, TINY.characters, "holds no weights"),
        (True, TINY.characters + "xyz", "27 token ids; the model has 24"),
    ],
)
def test_a_folder_that_cannot_be_the_reference_is_refused_before_it_is_loaded(
    tmp_path: Path, weights: bool, characters: str, complaint: str
):
    other = tmp_path / "other"
    write_model_folder(TINY.model_copy(update={"characters": characters}), other)
    if weights:
        (other / "model.safetensors").write_bytes(b"not even safetensors")

    with pytest.raises(BadConfiguration, match=rf"learner\.kl\.path .*{complaint}"):
        make_reference(the_term(other), a_trainer(tmp_path / "m"), None)


def test_a_folder_without_a_configuration_is_refused_with_its_key(tmp_path: Path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model.safetensors").write_bytes(b"x")

    with pytest.raises(BadConfiguration, match=r"learner\.kl\.path .*expected a Hugging Face"):
        make_reference(the_term(tmp_path / "other"), a_trainer(tmp_path / "m"), None)
