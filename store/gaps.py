"""Stretches of a log that were purged before they were recorded."""

from dataclasses import dataclass

from broker.topology import Log


@dataclass(frozen=True)
class Gap:
    """Sequences `first` to `last` of a log: no row says what they held."""

    log: Log
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.log} {spelled(self.first, self.last)}"


def spelled(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,}-{last:,}"
