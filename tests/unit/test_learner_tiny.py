"""The folder of a tiny model: what transformers makes of it."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from broker.errors import BadConfiguration
from learner.settings import TinyModel
from learner.tiny import write_model_folder

CHARACTERS = "0123456789+-=,. \nabc"


def test_the_folder_loads_with_transformers_and_text_survives_encode_and_decode(tmp_path):
    write_model_folder(TinyModel(characters=CHARACTERS, hidden=16, heads=2, kv_heads=2), tmp_path)

    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))

    text = "12 + 30=\n42,  abc."
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text)
    assert ids[0] == 3 + CHARACTERS.index("1")
    assert tokenizer.decode(ids) == text
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert model(torch.tensor([ids])).logits.shape == (1, len(ids), len(CHARACTERS) + 3)
    assert model.generation_config.eos_token_id == 2


def test_the_same_settings_give_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        write_model_folder(TinyModel(characters=CHARACTERS), tmp_path / name)

    for path in sorted((tmp_path / "a").iterdir()):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()
    assert json.loads((tmp_path / "a/config.json").read_text())["tie_word_embeddings"] is True


def test_text_outside_the_alphabet_is_refused_not_dropped(tmp_path):
    write_model_folder(TinyModel(characters="abc", hidden=16, heads=2, kv_heads=2), tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)

    with pytest.raises(Exception, match="UNK"):
        tokenizer("abz")


@pytest.mark.parametrize("changes", [{"characters": "aba"}, {"hidden": 24, "heads": 5}])
def test_impossible_settings_are_refused_by_name(tmp_path, changes):
    with pytest.raises(BadConfiguration, match=r"model\.tiny"):
        write_model_folder(TinyModel.model_validate({"characters": "abc"} | changes), tmp_path)
