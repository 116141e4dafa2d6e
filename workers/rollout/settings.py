"""Settings of generation: `[rollout]`."""

from typing import Annotated, Literal

from pydantic import Field

from broker.settings import Settings


class VllmSettings(Settings):
    """`[rollout.vllm]`: what only vLLM needs to know. Each process has two engines, for training and for
    evaluation."""

    kv_cache_gib: Annotated[float, Field(gt=0)] = 1.0
    """Of each engine on a CPU; answers wait while it is full."""
    gpu_memory_share: Annotated[float, Field(gt=0, lt=1)] = 0.4
    """Of each engine: weights and key-value cache together, of the GPU's memory."""
    tensor_parallel: Annotated[int, Field(ge=1)] = 1
    """GPUs that one engine is spread over."""
    share_gpu: bool = False
    """Learner and engines compute on one GPU by turns: an engine that has nothing to answer leaves it."""


class RolloutSettings(Settings):
    engine: Literal["torch", "vllm"] = "torch"
    processes: Annotated[int, Field(ge=1)] = 1
    """How many rollout processes `sluice run` starts."""
    max_rows: Annotated[int, Field(ge=1)] = 128
    """Answers decoded at once; groups beyond wait."""
    slots: Annotated[int, Field(ge=1)] = 64
    """Groups taken from the log at once by one process."""
    threads: Annotated[int, Field(ge=1)] = 1
    """Of decoding on a CPU; an evaluation by the torch engine takes one."""
    weights_wait_s: Annotated[float, Field(gt=0)] = 120.0
    """How long a group may wait for the model weights it asks for before it is handed back."""
    signals: tuple[Literal["entropy", "self_certainty", "hidden"], ...] = ()
    """What to record of each answer for the policy: per token its distribution's entropy, its
    self-certainty; the mean hidden state of each layer over the answer. Nothing is computed unless asked."""
    vllm: VllmSettings = VllmSettings()
