"""What learner and vLLM's engines can have in common: one GPU by turns, and a way for weights."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ops.settings import Configuration


def why_not_shared(configuration: "Configuration") -> str | None:
    """What speaks against it; None when they can."""
    run, rollout, device = configuration.run, configuration.rollout, configuration.model.device
    if rollout.engine != "vllm":
        return f"expected rollout.engine = 'vllm', got {rollout.engine!r}, which cannot leave a GPU"
    if not device.startswith("cuda"):
        return f"expected model.device = 'cuda', got {device!r}"
    if (run.max_staleness, run.pace_steps) != (0, 0):
        # Otherwise answers are asked for while a step is taken, and both wait for each other in vain.
        return (
            "expected run.max_staleness = 0 and run.pace = 0, with which nothing is generated during a "
            f"step; got {run.max_staleness} and {run.pace_steps}"
        )
    if rollout.vllm.tensor_parallel > 1 or rollout.processes > 1:
        return (
            "expected one engine process on one GPU, got rollout.vllm.tensor_parallel = "
            f"{rollout.vllm.tensor_parallel} and rollout.processes = {rollout.processes}"
        )
    if rollout.signals:
        return f"expected no rollout.signals, which keep weights on the GPU; got {rollout.signals}"
    return None


def why_not_sent(configuration: "Configuration") -> str | None:
    """What speaks against sending weights from GPU to GPU (`learner.transfer`); None when it can be done."""
    rollout, device = configuration.rollout, configuration.model.device
    if rollout.engine != "vllm":
        return f"expected rollout.engine = 'vllm', got {rollout.engine!r}, which reads files"
    if not device.startswith("cuda"):
        return f"expected model.device = 'cuda', got {device!r}"
    if rollout.signals:
        return f"expected no rollout.signals, whose forward reads files; got {rollout.signals}"
    if configuration.learner.transfer == "nccl" and rollout.vllm.share_gpu:
        return "NCCL joins no two processes on one GPU; expected 'ipc' with rollout.vllm.share_gpu"
    if configuration.learner.transfer == "ipc" and rollout.vllm.tensor_parallel > 1:
        return (
            "expected an engine on the learner's GPU alone, got rollout.vllm.tensor_parallel = "
            f"{rollout.vllm.tensor_parallel}"
        )
    return None
