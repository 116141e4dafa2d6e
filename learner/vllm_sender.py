"""vLLM's own trainer side of a weight transfer: the learner's only importer of vllm.

Written against vLLM 0.32 and tried on CPUs as far as vLLM's classes go there; NOT YET RUN ON A GPU.
"""

import base64
import importlib.util
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Literal

import torch

from broker.bus import Bus
from broker.errors import BadConfiguration
from broker.offer import announce
from learner.offers import Client, Offered, Offers, Send, Sending, own_address

Transfer = Literal["none", "nccl", "ipc"]

Meet = Callable[[int], tuple[dict[str, Any], Callable[[], Any]]]
"""For so many GPUs of an engine: what it is told in order to join, and how the learner joins, as rank 0."""


def refuse_without_vllm() -> None:
    """Raises BadConfiguration."""
    if importlib.util.find_spec("vllm") is None:
        raise BadConfiguration(
            "learner.transfer: vllm is not installed where the learner runs; pip install '.[vllm]'"
        )


@asynccontextmanager
async def offering(
    bus: Bus, transfer: Transfer, dtype: torch.dtype
) -> AsyncIterator[Offers | None]:
    """Where the run's engines can have weights while it lasts. Raises BadConfiguration without vllm."""
    if transfer == "none":
        yield None
        return
    refuse_without_vllm()
    send: Send = {"nccl": nccl, "ipc": Handles}[transfer]
    host, told = ("0.0.0.0", own_address()) if transfer == "nccl" else ("127.0.0.1", "127.0.0.1")
    offers = Offers(send, dtype=dtype)
    try:
        await announce(bus, await offers.open(host, told=told))
        yield offers
    finally:
        await offers.close()


def source_of(offered: Offered) -> Any:
    """vLLM's `WeightSource` of a version."""
    from vllm.distributed.weight_transfer.base import (  # pyright: ignore[reportMissingImports]
        ParamMeta,
        WeightSource,
    )

    class Source(WeightSource):
        def metadata(self) -> list[Any]:
            return [ParamMeta(k, v.dtype, tuple(v.shape)) for k, v in offered.tensors.items()]

        def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
            return iter(offered.tensors.items())

    return Source()


class Broadcast:
    """To all GPUs of one engine at once, over a communicator that lives for one transfer."""

    def __init__(
        self, offered: Offered, client: Client, ranks: int, *, engine: Any, meet: Meet
    ) -> None:
        """engine: vLLM's `TrainerWeightTransferEngine` class for a communicator such as `meet` makes."""
        self._client = client
        self._ranks = ranks
        self._meet = meet
        self._engine = engine(client=client, source=source_of(offered), packed=True)

    def run(self) -> None:
        told, join = self._meet(self._ranks)
        executor = ThreadPoolExecutor(1)
        try:
            # Both sides wait in it for each other.
            joining = executor.submit(self._client.init_weight_transfer_engine, told)
            self._engine.model_update_group = join()
            joining.result()
        finally:
            executor.shutdown(wait=False)
        self._engine.send_weights()
        self._engine.shutdown()

    def abort(self) -> None:
        self._engine.shutdown()


def nccl(offered: Offered, client: Client, ranks: int) -> Sending:
    from vllm.distributed.weight_transfer.nccl_engine import (  # pyright: ignore[reportMissingImports]
        NCCLTrainerWeightTransferEngine,
    )

    return Broadcast(
        offered, client, ranks, engine=NCCLTrainerWeightTransferEngine, meet=meet_over_nccl
    )


def meet_over_nccl(ranks: int) -> tuple[dict[str, Any], Callable[[], Any]]:
    """By NCCL's unique id, not by vLLM's store, which would unpickle what the network brings."""
    from vllm.distributed.device_communicators.pynccl_wrapper import (  # pyright: ignore[reportMissingImports]
        NCCLLibrary,
    )
    from vllm.distributed.weight_transfer.nccl_common import (  # pyright: ignore[reportMissingImports]
        uid_init_process_group,
    )

    unique = bytes(NCCLLibrary().ncclGetUniqueId().internal)
    device = torch.cuda.current_device()
    return told_over_nccl(unique, ranks), lambda: uid_init_process_group(
        unique, 0, 1 + ranks, device
    )


def told_over_nccl(unique: bytes, ranks: int) -> dict[str, Any]:
    from vllm.distributed.weight_transfer.nccl_common import (  # pyright: ignore[reportMissingImports]
        NCCLWeightTransferInitInfo,
        worker_init_payload,
    )

    info = NCCLWeightTransferInitInfo(
        rank_offset=1,
        world_size=1 + ranks,
        nccl_unique_id_b64=base64.b64encode(unique).decode(),
        packed=True,
    )
    return worker_init_payload(info)


class Handles:
    """To an engine on the learner's own GPU: it reads a buffer of the learner's, chunk by chunk."""

    def __init__(self, offered: Offered, client: Client, ranks: int) -> None:
        self._offered = offered
        self._client = client

    def run(self) -> None:
        from vllm.distributed.weight_transfer.ipc_engine import (  # pyright: ignore[reportMissingImports]
            IPCTrainerInitInfo,
            IPCTrainerWeightTransferEngine,
        )

        largest = max(tensor.nbytes for tensor in self._offered.tensors.values())
        info = IPCTrainerInitInfo(rank=0, packed=True)
        info.packed_buffer_size_bytes = max(info.packed_buffer_size_bytes, largest)
        engine = IPCTrainerWeightTransferEngine.trainer_init(
            info, client=PlainHandles(self._client), source=source_of(self._offered)
        )
        engine.send_weights()

    def abort(self) -> None:
        """Nothing is held in common but a buffer, which goes when the engine's process does."""


class PlainHandles:
    """A client whose handles of shared memory are told as plain values: nothing is pickled."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.init_weight_transfer_engine = client.init_weight_transfer_engine
        self.start_weight_update = client.start_weight_update
        self.finish_weight_update = client.finish_weight_update

    def update_weights(self, update_info: dict[str, Any]) -> None:
        handles = {gpu: plain(args) for gpu, args in update_info["ipc_handles"].items()}
        told = {k: v for k, v in update_info.items() if v is not None}
        self._client.update_weights(told | {"ipc_handles": handles})


def plain(handle: tuple[Any, ...]) -> list[Any]:
    """The arguments of torch's `rebuild_cuda_tensor` without their classes, which are always the same."""
    tensor, size, stride, offset, storage, dtype, *rest = handle
    if tensor is not torch.Tensor or storage is not torch.storage.TypedStorage:
        raise TypeError(
            f"a handle of {tensor.__name__} in {storage.__name__}; expected a plain tensor"
        )
    return [list(size), list(stride), offset, str(dtype).removeprefix("torch."), *rest]
