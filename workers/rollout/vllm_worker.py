"""What runs inside vLLM's worker processes beside vLLM itself: a complete change of weights."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from broker.fingerprint import fingerprint


class Extension:
    """Mixed into vLLM's worker, by its `worker_extension_cls`."""

    model_runner: Any
    reload_weights: Any
    update_weights: Any

    def take_weights(self, folder: str) -> None:
        """Load the weights of a model folder in the place of those there are."""
        self.reload_weights(weights_path=folder)
        self._pack_again()

    def watch_weights(self) -> None:
        """From now on, until `watched_weights`, take the fingerprint of each tensor that arrives."""
        model = self.model_runner.get_model()
        load = model.load_weights
        seen: dict[str, str] = {}

        def watched(weights: Iterable[tuple[str, torch.Tensor]]) -> Any:
            return load(fingerprinted(weights, seen))

        # An attribute of this one model, in front of its class's method.
        model.load_weights = watched
        model.sluice_seen = seen

    def take_chunk(self, update_info: dict[str, Any]) -> None:
        """vLLM's `update_weights`, for an `update_info` in which handles of memory are plain values."""
        handles = update_info.get("ipc_handles")
        if handles is not None:
            found = {gpu: handle_of(told) for gpu, told in handles.items()}
            update_info = update_info | {"ipc_handles": found}
        self.update_weights(update_info)

    def watched_weights(self) -> dict[str, str]:
        """Fingerprints of what arrived; text, since they are larger than what every encoder takes."""
        model = self.model_runner.get_model()
        seen = model.sluice_seen
        del model.load_weights, model.sluice_seen
        self._pack_again()
        return seen

    def _pack_again(self) -> None:
        for module in self.model_runner.get_model().modules():
            pack_again(module)


def fingerprinted(
    weights: Iterable[tuple[str, torch.Tensor]], seen: dict[str, str]
) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in weights:
        seen[name] = str(fingerprint(tensor))
        yield name, tensor


def handle_of(told: list[Any]) -> tuple[Any, ...]:
    """The arguments of torch's `rebuild_cuda_tensor` that the learner told as plain values."""
    size, stride, offset, dtype, *rest = told
    return (
        torch.Tensor, torch.Size(size), tuple(stride), offset, torch.storage.TypedStorage,
        getattr(torch, dtype), *rest,
    )  # fmt: skip


def pack_again(module: Any) -> None:
    """Make a layer's packed copy of its weights anew.

    On CPUs vLLM 0.32 multiplies with such copies and renews them for layers that weights were loaded into.
    An output layer that shares the embedding's weights is none: it would go on with the copy of its first
    weights, and neither vLLM's checksums nor its answers' versions would tell.
    """
    weight = getattr(module, "weight", None)
    # Where the copy has taken the place of the weights, they are of size 0 and the copy is new.
    if hasattr(module, "cpu_linear") and weight is not None and weight.numel() > 0:
        module.quant_method.process_weights_after_loading(module)
