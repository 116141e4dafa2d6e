"""vLLM's NCCL weight transfer on a CPU: all of it but the communicator, which is one that a CPU has.

Imported by vLLM's processes too, for what it registers there.
"""

import socket
from collections.abc import Callable
from typing import Any

import torch
from vllm.distributed.utils import StatelessProcessGroup
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.nccl_engine import (
    NCCLTrainerWeightTransferEngine,
    NCCLWeightTransferEngine,
)

from workers.rollout.vllm_worker import Extension as Ours

HOST = "127.0.0.1"


def group(port: int, rank: int) -> StatelessProcessGroup:
    return StatelessProcessGroup.create(HOST, port, rank, 2, store_timeout=30)


class CpuEngine(NCCLWeightTransferEngine):
    """The engine's side."""

    def init_transfer_engine(self, init_info: Any) -> None:
        self.model_update_group = group(init_info.master_port, 1)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # Without the wait for a device that is not there.
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: Any) -> None:
        for name, dtype, shape in zip(
            update_info.names, update_info.dtype_names, update_info.shapes, strict=True
        ):
            into = torch.empty(shape, dtype=getattr(torch, dtype))
            arrived = self.model_update_group.broadcast(into, src=0)
            self.model.load_weights([(name, arrived)])

    def shutdown(self) -> None:
        self.model_update_group = None


class CpuTrainer(NCCLTrainerWeightTransferEngine):
    """The learner's side."""

    def _broadcast(self, source: Any, meta: Any) -> None:
        for _, tensor in self._checked_iter(source, meta):
            self.model_update_group.broadcast(tensor, src=0)

    def shutdown(self) -> None:
        self.model_update_group = None


def meet(ranks: int) -> tuple[dict[str, Any], Callable[[], Any]]:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    told = {"master_address": HOST, "master_port": port, "rank_offset": 1, "world_size": 1 + ranks}
    return told, lambda: group(port, 0)


class Extension(Ours):
    """Named to vLLM, so that its processes import this file."""


if "cpu" not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine("cpu", CpuEngine)
