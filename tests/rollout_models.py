"""Small random models for tests of the rollout, and what transformers itself says of an answer."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from broker.messages import Sampling
from workers.rollout.decoder import Decoder, Ticket
from workers.rollout.engine import Answer, Job, Result
from workers.rollout.model import build_model, end_tokens, install_weights, stage_weights

VOCABULARY = 40
END = 2
TOKENS = ["<pad>", "<bos>", "<eos>", *"abcdefghijklmnopqrstuvwxyz0123456789+"]

_SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "eos_token_id": END,
    "bos_token_id": 1,
    "pad_token_id": 0,
}
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**_SMALL),
    "llama-tied": LlamaConfig(**_SMALL, tie_word_embeddings=True),
    # Heads of a size that vLLM knows, embeddings tied, and room for prompts longer than its blocks.
    "llama-wide": LlamaConfig(
        **_SMALL | {"hidden_size": 64, "num_attention_heads": 2, "max_position_embeddings": 512},
        tie_word_embeddings=True,
    ),
    # Its MLP is larger than a core's cache holds.
    "llama-large": LlamaConfig(**_SMALL | {"intermediate_size": 4096}),
    "qwen2": Qwen2Config(**_SMALL),
    "qwen2-window": Qwen2Config(
        **_SMALL, use_sliding_window=True, sliding_window=6, max_window_layers=1
    ),
    "qwen3": Qwen3Config(**_SMALL, head_dim=8),
}


def a_folder(path: Path, family: str = "llama") -> Path:
    """A model folder without weights."""
    path.mkdir(parents=True, exist_ok=True)
    CONFIGS[family].save_pretrained(path)
    words = {token: index for index, token in enumerate(TOKENS)}
    tokenizer = Tokenizer(models.WordLevel(words))
    tokenizer.add_special_tokens(TOKENS[:3])
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": TOKENS[END]}))
    return path


def a_model(family: str = "llama", seed: int = 0) -> PreTrainedModel:
    """transformers' own model, its weights large enough to make answers differ."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(CONFIGS[family], attn_implementation="sdpa").eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def save_weights(model: PreTrainedModel, file: Path) -> Path:
    """As the learner writes them: tensors that the model ties only once."""
    file.parent.mkdir(parents=True, exist_ok=True)
    seen: dict[int, str] = {}
    state = model.state_dict()
    for name in sorted(state):
        seen.setdefault(state[name].data_ptr(), name)
    save_file({name: state[name].contiguous() for name in seen.values()}, file)
    return file


SPOILT = ["missing", "unknown", "shape", "nan", "inf", "-inf", "cut off"]
"""How a file of weights may fail to fit the model."""


def spoil(good: Path, bad: Path, how: str) -> None:
    tensors, name = load_file(good), "model.layers.1.mlp.up_proj.weight"
    match how:
        case "missing":
            del tensors[name]
        case "unknown":
            tensors["extra"] = torch.zeros(1)
        case "shape":
            tensors[name] = tensors[name][:-1].contiguous()
        case "nan" | "inf" | "-inf":
            tensors[name][0, 0] = float(how)
    save_file(tensors, bad)
    if how == "cut off":
        bad.write_bytes(bad.read_bytes()[:-100])


def a_decoder(
    folder: Path,
    weights: Path,
    *,
    max_rows: int = 16,
    version: int = 0,
    ends: frozenset[int] | None = None,
    signals: tuple[str, ...] = (),
) -> Decoder:
    """ends: the folder's own by default; none keeps every answer going to its limit."""
    model = build_model(folder, device=torch.device("cpu"), dtype=torch.float32)
    ends = end_tokens(folder) if ends is None else ends
    decoder = Decoder(model, ends, max_rows=max_rows, signals=signals)
    swap(decoder, weights, version)
    return decoder


def swap(decoder: Decoder, weights: Path, version: int) -> None:
    install_weights(decoder.model, stage_weights(decoder.model, weights))
    decoder.set_version(version)


def a_job(
    prompt: list[int] | None = None,
    seeds: tuple[int, ...] = (1, 2),
    *,
    temperature: float = 1.0,
    max_tokens: int = 8,
    name: str = "g",
) -> Job:
    return Job(
        name=name,
        prompt_ids=np.array(prompt or [5, 6, 7], dtype=np.int32),
        seeds=seeds,
        sampling=Sampling(temperature=temperature, max_tokens=max_tokens),
    )


def decode(decoder: Decoder, jobs: list[Job]) -> list[Result]:
    """All results, in the order of the jobs."""
    tickets = [Ticket(job) for job in jobs]
    for ticket in tickets:
        decoder.submit(ticket)
    done: dict[Ticket, Result] = {}
    with torch.inference_mode():
        while decoder.busy:
            done.update(decoder.advance())
    return [done[ticket] for ticket in tickets]


def answers(result: Result) -> tuple[Answer, ...]:
    assert isinstance(result, tuple), result
    return result


def own_logprobs(
    model: PreTrainedModel, prompt: np.ndarray, answer: np.ndarray, temperature: float = 1.0
) -> np.ndarray:
    """transformers' full forward over prompt and answer: (T, V) log-probabilities of each next token."""
    ids = torch.tensor(np.concatenate([prompt, answer]), dtype=torch.int64)[None]
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits.float() / temperature, -1).numpy()


def a_pair(
    folder: Path,
    family: str = "llama",
    *,
    max_rows: int = 16,
    ends: frozenset[int] | None = None,
) -> tuple[Decoder, PreTrainedModel]:
    model = a_model(family)
    weights = save_weights(model, folder / "w")
    return a_decoder(a_folder(folder, family), weights, max_rows=max_rows, ends=ends), model


def check_against(model: PreTrainedModel, job: Job, answer: Answer) -> None:
    """Log-probabilities, greedy choices and the end of an answer, by the full forward."""
    temperature = job.sampling.temperature
    expected = own_logprobs(model, job.prompt_ids, answer.token_ids, temperature or 1.0)
    chosen = expected[np.arange(len(answer.token_ids)), answer.token_ids]
    np.testing.assert_allclose(answer.logprobs, chosen, atol=1e-4)
    if temperature == 0:
        np.testing.assert_allclose(chosen, expected.max(-1), atol=1e-4)
    assert END not in answer.token_ids[:-1]
    assert (answer.finish_reason == "stop") == (answer.token_ids[-1] == END)
    if answer.finish_reason == "length":
        assert len(answer.token_ids) == job.sampling.max_tokens


async def until(holds: Callable[[], object], wait_s: float = 20.0) -> None:
    """Returns as soon as a condition holds; fails after `wait_s`."""
    for _ in range(round(wait_s / 0.002)):
        if holds():
            return
        await asyncio.sleep(0.002)
    raise AssertionError(f"not so after {wait_s} s")
