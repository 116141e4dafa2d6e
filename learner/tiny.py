"""Makes the folder of a tiny model: Llama configuration and character tokenizer, no weights, no torch.

The same settings give the same bytes, so every process and every restart sees the same token ids.
"""

import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from broker.errors import BadConfiguration
from learner.settings import TinyModel

PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
SPECIAL_TOKENS = (PAD, BOS, EOS)
"""Ids 0, 1, 2; the characters follow in the order of the configuration."""


def vocabulary(characters: str) -> dict[str, int]:
    """Token to id. Raises BadConfiguration when a character is named twice or none is."""
    repeated = sorted({c for c in characters if characters.count(c) > 1})
    if repeated or not characters:
        raise BadConfiguration(
            f"model.tiny.characters: {''.join(repeated)!r} named twice; expected each once"
            if repeated
            else "model.tiny.characters: got ''; expected at least one character"
        )
    return {token: index for index, token in enumerate((*SPECIAL_TOKENS, *characters))}


def write_model_folder(tiny: TinyModel, folder: Path) -> None:
    """Write config.json, generation_config.json, tokenizer.json and tokenizer_config.json."""
    if tiny.hidden % tiny.heads or tiny.heads % tiny.kv_heads or (tiny.hidden // tiny.heads) % 2:
        raise BadConfiguration(
            f"model.tiny: hidden {tiny.hidden}, heads {tiny.heads}, kv_heads {tiny.kv_heads}; "
            "expected hidden a multiple of 2 * heads and heads a multiple of kv_heads"
        )
    tokens = vocabulary(tiny.characters)
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", _config(tiny, tokens))
    ids = {"bos_token_id": tokens[BOS], "eos_token_id": tokens[EOS], "pad_token_id": tokens[PAD]}
    _write_json(folder / "generation_config.json", ids)
    _character_tokenizer(tokens).save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": PAD,
            "bos_token": BOS,
            "eos_token": EOS,
            "clean_up_tokenization_spaces": False,
            "model_max_length": tiny.positions,
        },
    )


def _config(tiny: TinyModel, tokens: dict[str, int]) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(tokens),
        "hidden_size": tiny.hidden,
        "intermediate_size": tiny.intermediate,
        "num_hidden_layers": tiny.layers,
        "num_attention_heads": tiny.heads,
        "num_key_value_heads": tiny.kv_heads,
        "max_position_embeddings": tiny.positions,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "attention_dropout": 0.0,
        # Logits of unit variance from the start; the usual 0.02 costs a small model hundreds of steps.
        "initializer_range": tiny.hidden**-0.5,
        "bos_token_id": tokens[BOS],
        "eos_token_id": tokens[EOS],
        "pad_token_id": tokens[PAD],
        "dtype": "float32",
    }


def _character_tokenizer(tokens: dict[str, int]) -> Tokenizer:
    # No unknown token: text outside the alphabet is an error, not a silent hole in the prompt.
    tokenizer = Tokenizer(models.WordLevel(tokens))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def _write_json(path: Path, tree: object) -> None:
    path.write_text(json.dumps(tree, indent=2) + "\n", encoding="utf-8")
