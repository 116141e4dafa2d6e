"""What vLLM is started with, without vLLM."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from broker.errors import BadConfiguration
from tests.rollout_models import a_folder
from workers.rollout.settings import RolloutSettings
from workers.rollout.vllm_start import GIB, Start, arguments, environment
from workers.rollout.worker import make_engine


def a_start(device: str) -> Start:
    return Start(
        folder=Path("/m"), dtype="bfloat16", device=device, max_rows=64, threads=3, positions=512,
        kv_cache_gib=0.5, gpu_memory_share=0.3, tensor_parallel=2, share_gpu=True,
    )  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_whatever_could_change_a_distribution_is_stated(device: str):
    said = arguments(a_start(device))

    assert said["logprobs_mode"] == "processed_logprobs"
    assert said["generation_config"] == "vllm", "not the model folder's own"
    assert (said["dtype"], said["max_model_len"], said["max_num_seqs"]) == ("bfloat16", 512, 64)


def test_memory_is_bounded_by_the_setting_of_the_device():
    on_cpu, on_gpu = arguments(a_start("cpu")), arguments(a_start("cuda"))

    assert on_cpu["kv_cache_memory_bytes"] == GIB // 2
    assert "kv_cache_memory_bytes" not in on_gpu
    assert (on_gpu["gpu_memory_utilization"], on_gpu["tensor_parallel_size"]) == (0.3, 2)


@pytest.mark.parametrize("positions", [None, 64, 8192])
def test_no_prompt_is_taken_in_pieces_on_a_cpu(positions: int | None):
    said = arguments(replace(a_start("cpu"), positions=positions))

    assert not said["enable_chunked_prefill"]
    assert said["max_num_batched_tokens"] >= (positions or 4096), "such a prompt must fit at once"


def test_only_an_engine_on_a_gpu_can_be_put_to_sleep():
    assert arguments(a_start("cuda"))["enable_sleep_mode"]
    assert not arguments(a_start("cpu"))["enable_sleep_mode"], "vLLM would refuse to start"


def test_vllm_is_told_of_a_transfer_only_where_there_is_one():
    without, sent = a_start("cuda"), replace(a_start("cuda"), transfer="nccl")

    assert "weight_transfer_config" not in arguments(without)
    assert arguments(sent)["weight_transfer_config"] == {"backend": "nccl"}


def test_threads_are_those_of_the_configuration():
    assert environment(a_start("cpu"))["OMP_NUM_THREADS"] == "3"


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vllm is installed")
def test_without_vllm_the_engine_is_refused_with_the_command_that_mends_it(tmp_path: Path):
    settings = RolloutSettings(engine="vllm")

    with pytest.raises(BadConfiguration, match="ops/bin/vllm-cpu"):
        make_engine(settings, a_folder(tmp_path), "cpu", "float32", tmp_path)
