"""Which requests each planned step holds: what must stay in the logs for its redo and for a fold. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    sequence: int
    """Of StepPlanned in LEDGER."""
    first: int
    last: int
    """Smallest and largest request_seq of its groups."""


class StepSpans:
    def __init__(self) -> None:
        self._spans: dict[int, Span] = {}

    def planned(self, step: int, sequence: int, request_seqs: Iterable[int]) -> None:
        """A step was planned with these groups (those that are still known)."""
        numbers = list(request_seqs)
        if numbers:
            self._spans[step] = Span(sequence, min(numbers), max(numbers))

    def first_request_after(self, step: int) -> int | None:
        """The oldest request in any later step: a redo from that step's checkpoint reads its group."""
        return min((s.first for number, s in self._spans.items() if number > step), default=None)

    def first_plan_above(self, floor: int) -> int | None:
        """The oldest StepPlanned that ends a request above `floor`: a fold needs it."""
        return min((s.sequence for s in self._spans.values() if s.last > floor), default=None)

    def forget(self, floor: int) -> None:
        """Requests up to `floor` are purged."""
        self._spans = {step: span for step, span in self._spans.items() if span.last > floor}
