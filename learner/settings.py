"""Settings of the model and of training: `[model]`, `[warmup]`, `[learner]`."""

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from broker.settings import Settings
from learner.objective import Objective


class TinyModel(Settings):
    """`[model.tiny]`: a Llama-architecture model made from scratch, with a character tokenizer."""

    characters: str
    hidden: Annotated[int, Field(ge=8)] = 128
    layers: Annotated[int, Field(ge=1)] = 4
    heads: Annotated[int, Field(ge=1)] = 4
    kv_heads: Annotated[int, Field(ge=1)] = 4
    intermediate: Annotated[int, Field(ge=8)] = 344
    positions: Annotated[int, Field(ge=16)] = 256


class ModelSettings(Settings):
    """`[model]`: a Hugging Face causal LM folder, or a tiny one made at the start of the run."""

    path: Path | None = None
    tiny: TinyModel | None = None
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the computation; master weights are float32."""

    @property
    def hidden_values(self) -> int:
        """Of the hidden states at one token: (layers + 1) * hidden size; 0 of a folder that cannot be read,
        which whoever loads the model refuses."""
        if self.tiny is not None:
            return (self.tiny.layers + 1) * self.tiny.hidden
        try:
            config = json.loads(((self.path or Path()) / "config.json").read_text(encoding="utf-8"))
            return (config["num_hidden_layers"] + 1) * config["hidden_size"]
        except (OSError, ValueError, KeyError):
            return 0


class WarmupSettings(Settings):
    """`[warmup]`: supervised steps on worked solutions before the first rollout; 0 steps: none."""

    steps: Annotated[int, Field(ge=0)] = 0
    batch_size: Annotated[int, Field(ge=1)] = 64
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3


class LearnerSettings(Objective):
    """`[learner]`."""

    learning_rate: Annotated[float, Field(ge=0)] = 1e-6
    schedule: Literal["constant", "linear"] = "constant"
    """Of the learning rate; `linear`: towards zero at step `run.steps`."""
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    micro_batch_tokens: Annotated[int, Field(ge=16)] = 16_384
    """Prompt and answer tokens, padding included, that go through the model at once."""
    activation_checkpointing: bool = False
    """Keep one activation a layer, compute the rest again in backward: a third more time, far less memory."""
    compile: bool = False
    """torch.compile for each layer; needs a C++ compiler or a GPU, and costs a minute at the start."""
    identity_band: Annotated[float, Field(gt=0)] | None = None
    """Mean |log-probability of the trainer - of the engine|, nats a token, beyond which nothing is trained;
    None: 0.02 in float32, 0.1 in bfloat16."""
    threads: Annotated[int, Field(ge=1)] = 1
    """For products. On a CPU a step's rows go in so many streams, each with a micro-batch and gradients of
    its own in memory."""
    min_fresh_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Of a step's groups; the oldest beyond it are dropped as `not_fresh` and asked for again. 0: off."""
    checkpoint_every: Annotated[int, Field(ge=1)] = 20
    keep_checkpoints: Annotated[int, Field(ge=1)] = 2
    on_mismatch: Literal["halt", "republish"] = "halt"
    weights: Literal["object", "directory"] = "directory"
    """How model weights travel: the run's NATS object store, or files under the run's directory."""
    transfer: Literal["none", "nccl", "ipc"] = "none"
    """How vLLM's engines also get the newest weights straight from the learner's GPU: over NCCL, on GPUs of
    their own, or as memory shared on the learner's. Where that fails they take the stored ones."""
