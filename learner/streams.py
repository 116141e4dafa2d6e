"""An update's rows as streams, each computed by a thread of its own that needs one core.

Two threads that share every product wait for the slower one at each; where an engine or another role takes
one's core for a moment, both lose it. Streams meet once, at the end. What comes out depends on how many
streams there are, not on when which of them was computed.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import torch

from learner.batch import Row

Part = TypeVar("Part")
Found = TypeVar("Found")

Gradients = list[torch.Tensor | None]
"""One for each parameter, None where a stream did not reach it."""


def split_rows(rows: Sequence[Row], chosen: Sequence[int], streams: int) -> list[list[int]]:
    """The chosen rows' indices, ascending, in at most so many streams, as even as whole groups allow.

    None is empty. A group stays together, since its rows share their prompt, unless there are fewer groups
    than streams.
    """
    groups: dict[int, list[int]] = {}
    for index in sorted(chosen):
        groups.setdefault(rows[index].group, []).append(index)
    pieces = list(groups.values())
    if len(pieces) < streams:
        pieces = [[index] for index in sorted(chosen)]

    def tokens(piece: Sequence[int]) -> int:
        return sum(rows[index].length for index in piece)

    found: list[list[int]] = [[] for _ in range(streams)]
    for piece in sorted(pieces, key=tokens, reverse=True):
        min(found, key=tokens).extend(piece)
    return [sorted(stream) for stream in found if stream]


class Streams:
    """So many threads, the caller's own among them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._others = ThreadPoolExecutor(count - 1, "stream") if count > 1 else None

    def compute(self, function: Callable[[int, Part], Found], parts: Sequence[Part]) -> list[Found]:
        """`function(number, part)` of each part, `count` at most; the first one's in the caller's thread.

        Of several, each computes its products on one core. All have ended when this returns, or raises what
        the part of the lowest number that failed raised.
        """
        if self._others is None or len(parts) < 2:
            return [function(number, part) for number, part in enumerate(parts)]
        threads = torch.get_num_threads()
        futures = [
            self._others.submit(_alone, function, number, part)
            for number, part in enumerate(parts[1:], start=1)
        ]
        try:
            own = _alone(function, 0, parts[0])
        finally:
            wait(futures)
            torch.set_num_threads(threads)
        return [own, *(future.result() for future in futures)]


def _alone(function: Callable[[int, Part], Found], number: int, part: Part) -> Found:
    # A thread that torch does not know yet would go by whatever number another thread sets next.
    torch.get_num_threads()
    torch.set_num_threads(1)
    return function(number, part)


def gradients_of(loss: torch.Tensor, parameters: Sequence[torch.Tensor]) -> Gradients:
    """As the optimizer needs them: laid out as the parameter, in memory of their own. Those in force stay."""
    found: Gradients = []
    seen: set[int] = set()
    for parameter, gradient in zip(
        parameters, torch.autograd.grad(loss, list(parameters), allow_unused=True), strict=True
    ):
        if gradient is not None and (
            gradient.stride() != parameter.stride() or gradient.data_ptr() in seen
        ):
            gradient = torch.empty_like(parameter).copy_(gradient)
        if gradient is not None:
            seen.add(gradient.data_ptr())
        found.append(gradient)
    return found


def add_up(total: Gradients | None, found: Sequence[torch.Tensor | None]) -> Gradients:
    """The sum, in place of `total` where there is one."""
    if total is None:
        return list(found)
    return [
        more if so_far is None else so_far if more is None else so_far.add_(more)
        for so_far, more in zip(total, found, strict=True)
    ]
