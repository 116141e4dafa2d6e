"""The model being trained: loaded from a Hugging Face folder, its answer log-probabilities, its weights.

Master weights are float32 whatever the computation uses. Nothing here reads pickle.
"""

import hashlib
import json
from functools import lru_cache
from pathlib import Path

import safetensors.torch
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from broker.errors import BadConfiguration
from broker.exclusive import MODEL_LOADING
from learner import packing
from learner.layout import MicroBatch
from learner.logprobs import chosen_logprobs
from learner.packing import chosen

HEAD_TOLERANCE = 1e-3
"""Largest difference between the model's own logits and ours that is round-off."""


def load_model(folder: Path, *, device: str, seed: int) -> PreTrainedModel:
    """The causal LM in `folder`, float32; without weights there, made anew from `seed`.

    Raises BadConfiguration when it is no such folder or its logits are not hidden states times the
    output embedding, which is what `answer_logprobs` computes.
    """
    if not (folder / "config.json").is_file():
        raise BadConfiguration(
            f"model.path {folder}: has no config.json; expected a Hugging Face causal LM folder"
        )
    with MODEL_LOADING:
        model = _build(folder, seed)
    # Dropout would make the trained distribution differ from the sampled one.
    model.to(torch.device(device))  # pyright: ignore[reportArgumentType]
    model.eval()
    _check_head(model, folder)
    return model


def _build(folder: Path, seed: int) -> PreTrainedModel:
    torch.manual_seed(seed)
    options = {"dtype": torch.float32, "attn_implementation": packing.NAME}
    try:
        if any(folder.glob("*.safetensors")):
            model = AutoModelForCausalLM.from_pretrained(
                folder, local_files_only=True, use_safetensors=True, **options
            )
        elif any(folder.glob("*.bin")):
            raise BadConfiguration(
                f"model.path {folder}: weights are pickled (.bin); expected safetensors"
            )
        else:
            config = AutoConfig.from_pretrained(folder, local_files_only=True)
            model = AutoModelForCausalLM.from_config(config, **options)
    except (OSError, ValueError, KeyError) as error:
        raise BadConfiguration(f"model.path {folder}: cannot be loaded: {error}") from error
    return model


def head_weight(model: PreTrainedModel) -> torch.Tensor:
    """(V, H) output embedding."""
    head = model.get_output_embeddings()
    if not isinstance(head, torch.nn.Linear):
        raise BadConfiguration(
            f"model.path: the output embedding is {type(head).__name__}; expected a linear layer"
        )
    return head.weight


@torch.no_grad()
def _check_head(model: PreTrainedModel, folder: Path) -> None:
    ids = torch.arange(8, device=model.device)[None, :] % model.config.vocab_size
    own = model(ids, use_cache=False).logits.float()
    ours = model.base_model(ids, use_cache=False).last_hidden_state @ head_weight(model).T
    worst = (own - ours).abs().max().item() if own.shape == ours.shape else float("inf")
    if worst > HEAD_TOLERANCE:
        raise BadConfiguration(
            f"model.path {folder}: logits differ by {worst:.3g} from hidden states times the output "
            f"embedding (limit {HEAD_TOLERANCE}); expected an architecture without logit scaling, "
            "soft-capping or bias, such as Llama or Qwen"
        )


def answer_logprobs(
    model: PreTrainedModel,
    batch: MicroBatch,
    *,
    dtype: torch.dtype,
    entropy_gradient: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(N,) log-probabilities with gradients and entropies of the answer tokens, float32.

    Only the positions before answer tokens reach the output embedding. dtype: of the computation.
    """
    low = dtype is not torch.float32
    packed = batch.packed
    with torch.autocast(packed.input_ids_S.device.type, dtype=dtype if low else None, enabled=low):
        hidden_1SH = model.base_model(
            input_ids=packed.input_ids_S[None],
            position_ids=packed.position_ids_S[None],
            use_cache=False,
            packed=packed,
        ).last_hidden_state
    hidden_NH = chosen(hidden_1SH[0], batch.positions_N).to(dtype)
    return chosen_logprobs(
        hidden_NH, head_weight(model).to(dtype), batch.answer_ids_N, batch.temperature_N,
        entropy_gradient=entropy_gradient,
    )  # fmt: skip


def named_weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The state dict in order of name; of tied tensors only the one the others are tied to."""
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    return {name: value for name, value in sorted(model.state_dict().items()) if name not in tied}


def weights_bytes(model: PreTrainedModel) -> bytes:
    """safetensors of `named_weights`, float32; the same weights always give the same bytes."""
    tensors = {
        name: value.detach().to("cpu", torch.float32).contiguous()
        for name, value in named_weights(model).items()
    }
    head, names = _head(tuple((name, tuple(value.shape)) for name, value in tensors.items()))
    # In one copy; safetensors makes several, and a step waits for them.
    return b"".join((head, *(tensors[name].numpy().data for name in names)))


@lru_cache(maxsize=4)
def _head(shapes: tuple[tuple[str, tuple[int, ...]], ...]) -> tuple[bytes, list[str]]:
    """All that safetensors writes before float32 tensors of these shapes; in what order they follow."""
    zeros = {name: torch.zeros(shape) for name, shape in shapes}
    # The metadata is what makes `from_pretrained` accept the file as it is.
    data = safetensors.torch.save(zeros, metadata={"format": "pt"})
    head = data[: 8 + int.from_bytes(data[:8], "little")]
    entries = json.loads(head[8:])
    return head, sorted(zeros, key=lambda name: entries[name]["data_offsets"])


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def load_weights(model: PreTrainedModel, data: bytes) -> None:
    """Put `weights_bytes` back, in place. ValueError when names do not match the model's."""
    tensors = safetensors.torch.load(data)
    targets = named_weights(model)
    if tensors.keys() != targets.keys():
        odd = sorted(tensors.keys() ^ targets.keys())
        raise ValueError(f"weights: {len(odd)} names do not match the model's, such as {odd[0]}")
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(tensors[name])
