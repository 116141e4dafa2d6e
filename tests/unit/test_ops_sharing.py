"""What learner and vLLM's engines may have in common, and what is refused."""

from pathlib import Path

import pytest

from broker.errors import BadConfiguration
from ops import settings
from tests.configurations import written


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("rollout.engine=torch", "got 'torch', which cannot leave a GPU"),
        ("model.device=cpu", r"expected model\.device = 'cuda', got 'cpu'"),
        ("run.max_staleness=1", "nothing is generated during a step; got 1 and 1"),
        ("run.pace=1", "got 0 and 1"),
        ("rollout.processes=2", r"one engine process on one GPU, .*rollout\.processes = 2"),
        ("rollout.vllm.tensor_parallel=2", r"tensor_parallel = 2"),
        ("rollout.signals=['entropy']", r"no rollout\.signals"),
    ],
)
def test_a_gpu_is_shared_only_where_nothing_is_generated_during_a_step(
    tmp_path: Path, change: str, why: str
):
    path = written(tmp_path)
    shared = (
        "rollout.engine=vllm", "model.device=cuda", "rollout.vllm.share_gpu=true",
        "run.max_staleness=0",
    )  # fmt: skip

    assert settings.load(path, shared, environment={}).rollout.vllm.share_gpu
    with pytest.raises(BadConfiguration, match=f"rollout.vllm.share_gpu: .*{why}"):
        settings.load(path, (*shared, change), environment={})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("rollout.engine=torch", "got 'torch', which reads files"),
        ("model.device=cpu", r"expected model\.device = 'cuda', got 'cpu'"),
        ("rollout.signals=['entropy']", r"no rollout\.signals"),
        ("rollout.vllm.share_gpu=true", "NCCL joins no two processes on one GPU"),
    ],
)
def test_weights_are_sent_only_between_gpus_that_can_be_joined(
    tmp_path: Path, change: str, why: str
):
    path = written(tmp_path)
    sent = ("rollout.engine=vllm", "model.device=cuda", "learner.transfer=nccl")
    sent = (*sent, "run.max_staleness=0")

    assert settings.load(path, sent, environment={}).learner.transfer == "nccl"
    with pytest.raises(BadConfiguration, match=rf"learner\.transfer = 'nccl': .*{why}"):
        settings.load(path, (*sent, change), environment={})
    shared = (*sent, "learner.transfer=ipc", "rollout.vllm.share_gpu=true")
    assert settings.load(path, shared, environment={}).learner.transfer == "ipc"
