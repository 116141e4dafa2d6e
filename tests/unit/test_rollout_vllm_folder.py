"""Published weights as the folder that vLLM reads, without vLLM."""

import resource
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.rollout_models import SPOILT, a_folder, a_model, save_weights, spoil
from workers.rollout.engine import BadWeights
from workers.rollout.vllm_folder import Folders


@pytest.mark.parametrize("family", ["llama", "llama-wide", "qwen3"])
def test_the_folder_is_a_model_with_exactly_these_weights(tmp_path: Path, family: str):
    model_dir, model = a_folder(tmp_path / "model", family), a_model(family)
    (model_dir / "model.safetensors").write_bytes(b"of another version")
    weights = save_weights(model, tmp_path / "w")

    folder = Folders(model_dir, tmp_path / "home").make(weights, 3)
    weights.unlink()

    read = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    assert all(torch.equal(read[name], tensor) for name, tensor in model.state_dict().items())


def test_tied_embeddings_are_stored_under_the_name_that_vllm_reads(tmp_path: Path):
    weights = save_weights(a_model("llama-wide"), tmp_path / "w")
    assert "lm_head.weight" in load_file(weights), "as the learner writes them"

    folder = Folders(a_folder(tmp_path / "m", "llama-wide"), tmp_path / "home").make(weights, 0)

    names = set(load_file(folder / "model.safetensors"))
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names


@pytest.mark.parametrize("how", SPOILT)
def test_weights_that_do_not_fit_make_no_folder(tmp_path: Path, how: str):
    bad = tmp_path / "bad"
    spoil(save_weights(a_model(), tmp_path / "w"), bad, how)

    with pytest.raises(BadWeights, match=str(bad)):
        Folders(a_folder(tmp_path / "m"), tmp_path / "home").make(bad, 1)

    assert not (tmp_path / "home").exists()


def test_a_disk_without_room_is_bad_weights_and_leaves_no_folder(tmp_path: Path):
    weights = save_weights(a_model("llama-wide"), tmp_path / "w")
    folders = Folders(a_folder(tmp_path / "m", "llama-wide"), tmp_path / "home")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    # A write beyond it fails as one on a full disk does.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(BadWeights, match=str(weights)):
            folders.make(weights, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert not list((tmp_path / "home").iterdir())
    assert folders.make(weights, 1).exists()
