"""What leaves Sluice: a folder that transformers loads, with the trained weights."""

import json
import warnings

import pytest
import torch
from safetensors.torch import save
from transformers import AutoModelForCausalLM, AutoTokenizer

from broker.errors import BadConfiguration
from learner.checkpoint import BadCheckpoint, Checkpoint, CheckpointState, write
from learner.export import export_checkpoint, export_weights
from learner.model import digest_of, load_model, named_weights, weights_bytes
from tests.learning import a_model, a_model_folder


def test_the_exported_folder_gives_the_same_logits(tmp_path):
    model = a_model(tmp_path / "m", seed=5)
    export_weights(weights_bytes(model), tmp_path / "m", tmp_path / "out")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")

    ids = torch.tensor([tokenizer("12+3=")["input_ids"]])
    assert loaded.dtype == torch.float32
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    again = load_model(tmp_path / "out", device="cpu", seed=0)
    assert weights_bytes(again) == weights_bytes(model)


def test_weights_are_the_bytes_that_safetensors_makes_of_them(tmp_path):
    for dtype in (torch.float32, torch.bfloat16):
        model = a_model(tmp_path / "m", seed=5).to(dtype)
        tensors = {name: value.float() for name, value in named_weights(model).items()}

        assert weights_bytes(model) == save(tensors, metadata={"format": "pt"})


def test_the_model_that_a_run_began_with_is_not_overwritten(tmp_path):
    folder = a_model_folder(tmp_path / "m")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    with pytest.raises(BadConfiguration, match="expected another folder"):
        export_weights(b"trained", folder, tmp_path / "m" / ".." / "m")

    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_the_newest_checkpoint_that_verifies_is_exported(tmp_path):
    paths = {}
    for step in (1, 2, 3):
        data = weights_bytes(a_model(tmp_path / "m", seed=step))
        state = CheckpointState(
            step=step, version=step, cursor=0, rng=b"", config_sha256="", world_size=1, threads=1,
            libraries={}, model_sha256=digest_of(data), optimizer_sha256=digest_of(b""),
        )  # fmt: skip
        paths[step] = write(tmp_path / "run/checkpoints", Checkpoint(state, data, b""))
    (paths[3] / "model.safetensors").write_bytes(b"damaged")

    assert export_checkpoint(tmp_path / "run", tmp_path / "m", tmp_path / "a") == 2
    assert export_checkpoint(tmp_path / "run", tmp_path / "m", tmp_path / "b", step=1) == 1
    expected = (paths[2] / "model.safetensors").read_bytes()
    assert (tmp_path / "a/model.safetensors").read_bytes() == expected
    with pytest.raises(BadConfiguration, match=r"--step 9: no such checkpoint .* 1, 2, 3"):
        export_checkpoint(tmp_path / "run", tmp_path / "m", tmp_path / "c", step=9)
    with pytest.raises(BadCheckpoint, match="sha256"):
        export_checkpoint(tmp_path / "run", tmp_path / "m", tmp_path / "c", step=3)
    with pytest.raises(BadConfiguration, match="no checkpoint yet"):
        export_checkpoint(tmp_path / "empty", tmp_path / "m", tmp_path / "c")


def test_a_folder_without_weights_is_made_from_the_seed(tmp_path):
    folder = a_model_folder(tmp_path)

    first, same, other = (
        weights_bytes(load_model(folder, device="cpu", seed=seed)) for seed in (1, 1, 2)
    )

    assert first == same != other


def test_what_is_no_model_folder_is_refused_by_name(tmp_path):
    with pytest.raises(BadConfiguration, match=r"model\.path .*no config\.json"):
        load_model(tmp_path, device="cpu", seed=0)

    folder = a_model_folder(tmp_path / "pickled")
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(BadConfiguration, match="pickled"):
        load_model(folder, device="cpu", seed=0)

    folder = a_model_folder(tmp_path / "scaled")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config | {"model_type": "granite", "logits_scaling": 4.0, "architectures": None})
    )
    with pytest.raises(BadConfiguration, match="logit scaling"):
        load_model(folder, device="cpu", seed=0)
