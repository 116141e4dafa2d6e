"""Turn a GGUF file of a Llama model into a Hugging Face folder: dequantised weights, the exact tokenizer.

The tokenizer is rebuilt from the file's own tokens and merges, because the generic conversion drops
the digit splitting that SmolLM was trained with.
"""

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, dequantize  # pyright: ignore[reportMissingImports] - ops/bin/smollm2 installs it
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CONTROL = 3
"""Token type of special tokens in GGUF."""
OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
BLOCK_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def tokenizer_of(reader: GGUFReader) -> PreTrainedTokenizerFast:
    """Byte-level BPE with every digit a token of its own, as SmolLM2's."""
    tokens, types, merges = (
        reader.fields[f"tokenizer.ggml.{name}"].contents()
        for name in ("tokens", "token_type", "merges")
    )
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL]
    bpe = Tokenizer(
        models.BPE(
            vocab={token: at for at, token in enumerate(tokens)},
            merges=[tuple(pair.split(" ")) for pair in merges],
        )
    )
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])

    def named(role: str) -> str:
        return tokens[reader.fields[f"tokenizer.ggml.{role}_token_id"].contents()]

    found = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=named("bos"),
        eos_token=named("eos"),
        unk_token=named("unknown"),
        pad_token=named("padding"),
        model_max_length=reader.fields["llama.context_length"].contents(),
        clean_up_tokenization_spaces=False,
    )
    found.chat_template = reader.fields["tokenizer.chat_template"].contents()
    return found


def config_of(reader: GGUFReader) -> LlamaConfig:
    def field(name: str) -> Any:
        return reader.fields[f"llama.{name}"].contents()

    def special(role: str) -> Any:
        return reader.fields[f"tokenizer.ggml.{role}_token_id"].contents()

    return LlamaConfig(
        vocab_size=field("vocab_size"),
        hidden_size=field("embedding_length"),
        intermediate_size=field("feed_forward_length"),
        num_hidden_layers=field("block_count"),
        num_attention_heads=field("attention.head_count"),
        num_key_value_heads=field("attention.head_count_kv"),
        max_position_embeddings=field("context_length"),
        rms_norm_eps=round(field("attention.layer_norm_rms_epsilon"), 9),
        rope_parameters={"rope_type": "default", "rope_theta": field("rope.freq_base")},
        tie_word_embeddings=all(tensor.name != "output.weight" for tensor in reader.tensors),
        bos_token_id=special("bos"),
        eos_token_id=special("eos"),
        pad_token_id=special("padding"),
    )


def weights_of(reader: GGUFReader, config: LlamaConfig) -> dict[str, torch.Tensor]:
    """Dequantised weights under their Hugging Face names."""
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    found: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        block = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", tensor.name)
        if block is None:
            name = OUTER_NAMES[tensor.name]
        else:
            layer, part = block.groups()
            name = f"model.layers.{layer}.{BLOCK_NAMES[part]}.weight"
            if part in heads:
                # GGUF interleaves the two halves that the rotation pairs; Hugging Face keeps them apart.
                pairs = values.reshape(heads[part], -1, 2, values.shape[-1])
                values = pairs.swapaxes(1, 2).reshape(values.shape)
        found[name] = torch.from_numpy(np.ascontiguousarray(values))
    return found


def convert(source: Path, target: Path) -> None:
    """Write `target` whole or not at all."""
    unfinished = target.with_name(target.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    reader = GGUFReader(source)
    model: Any = LlamaForCausalLM(config_of(reader))
    missing, unexpected = model.load_state_dict(weights_of(reader, model.config), strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise SystemExit(f"{source}: weights missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    model.to(dtype=torch.bfloat16).save_pretrained(unfinished)
    tokenizer_of(reader).save_pretrained(unfinished)
    shutil.rmtree(target, ignore_errors=True)
    unfinished.rename(target)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
