"""The frozen model of the KL term: of a folder, or the run's own first weights."""

import threading
from pathlib import Path

import pytest
import torch

from broker.errors import BadConfiguration
from broker.messages import StepCommitted
from learner import redo
from learner.objective import KlToReference
from learner.reference import make_reference
from learner.settings import LearnerSettings
from learner.tiny import write_model_folder
from learner.trainer import Trainer
from tests.learner_lives import (
    Crash,
    DyingBus,
    Run,
    a_server,
    events,
    of_kind,
    outcome,
    windows,
)
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


async def test_the_frozen_reference_survives_a_crash_and_the_retention_of_checkpoints(tmp_path):
    changes = {
        "kl": {"name": "k3", "coefficient": 0.5},
        "updates_per_step": 2,
        "checkpoint_every": 1,
        "keep_checkpoints": 1,
    }
    undisturbed = await Run(tmp_path / "a", await a_server(windows()), **changes).to_the_end()
    server = await a_server(windows())
    with pytest.raises(Crash):
        await Run(tmp_path / "b", server, **changes).live(
            DyingBus(server, "r", kind="step_planned", count=4, after=True)
        )

    found = await Run(tmp_path / "b", server, **changes).to_the_end()

    assert outcome(found) == outcome(undisturbed)
    kept = sorted(path.name[:13] for path in (tmp_path / "b" / "checkpoints").iterdir())
    assert kept == ["step-00000000", "step-00000004"]
    metrics = of_kind(found, StepCommitted)[-1].metrics
    assert metrics["reference_kl"] > 0
    assert metrics["updates"] == 2


async def test_without_the_weights_that_kl_compares_with_the_learner_halts_and_publishes_nothing(
    tmp_path,
):
    changes = {"kl": {"name": "k3", "coefficient": 0.5}}
    server = await a_server(windows())
    with pytest.raises(Crash):
        await Run(tmp_path, server, **changes).live(
            DyingBus(server, "r", kind="step_planned", count=3, after=True)
        )
    before = await events(server)
    (tmp_path / "checkpoints/step-00000000-v00000000/model.safetensors").write_bytes(b"x")

    with pytest.raises(redo.LogIncomplete, match=r"learner\.kl .* version 0: .*sha256"):
        await Run(tmp_path, server, **changes).live()

    assert await events(server) == before
