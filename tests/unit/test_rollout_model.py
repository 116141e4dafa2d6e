"""Model folders: every end token is found, nothing of the process is disturbed, bad ones are refused."""

import json
from pathlib import Path

import pytest
import torch

from broker.errors import BadConfiguration
from tests.rollout_models import CONFIGS, a_folder
from workers.rollout.model import build_model, end_tokens

CPU = torch.device("cpu")


def change(file: Path, **entries: object) -> None:
    tree = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(tree | entries))


def test_end_tokens_come_from_all_three_places_as_number_or_list(tmp_path: Path):
    folder = a_folder(tmp_path)
    change(folder / "config.json", eos_token_id=5)
    change(folder / "generation_config.json", eos_token_id=[7, 9])

    assert end_tokens(folder) == {2, 5, 7, 9}


def test_the_tokenizer_may_describe_its_end_token_with_options(tmp_path: Path):
    folder = a_folder(tmp_path)
    change(folder / "config.json", eos_token_id=None)
    change(folder / "tokenizer_config.json", eos_token={"content": "<bos>", "lstrip": False})

    assert end_tokens(folder) == {1}


def test_a_model_may_have_no_end_token(tmp_path: Path):
    folder = a_folder(tmp_path)
    change(folder / "config.json", eos_token_id=None)
    (folder / "tokenizer_config.json").unlink()

    assert end_tokens(folder) == frozenset()


@pytest.mark.parametrize("family", CONFIGS)
def test_building_a_model_draws_no_random_numbers(tmp_path: Path, family: str):
    folder = a_folder(tmp_path, family)
    before = torch.get_rng_state()

    build_model(folder, device=CPU, dtype=torch.float32)

    assert torch.equal(torch.get_rng_state(), before)


def test_rotary_frequencies_that_depend_on_the_batch_are_refused(tmp_path: Path):
    folder = a_folder(tmp_path)
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    change(folder / "config.json", rope_parameters=rope)

    with pytest.raises(BadConfiguration, match="rope_type 'dynamic' depends on the batch"):
        build_model(folder, device=CPU, dtype=torch.float32)


def test_a_folder_that_is_no_model_is_refused_by_name(tmp_path: Path):
    with pytest.raises(BadConfiguration, match=str(tmp_path)):
        build_model(tmp_path, device=CPU, dtype=torch.float32)
