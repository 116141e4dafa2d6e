"""What runs inside vLLM's worker processes beside vLLM itself: a complete change of weights."""

from typing import Any


class Extension:
    """Mixed into vLLM's worker, by its `worker_extension_cls`."""

    model_runner: Any
    reload_weights: Any

    def take_weights(self, folder: str) -> None:
        """Load the weights of a model folder in the place of those there are."""
        self.reload_weights(weights_path=folder)
        for module in self.model_runner.get_model().modules():
            pack_again(module)


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
