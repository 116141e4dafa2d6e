"""What a dataset or a generator offers: items by index, under a name and a content version."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from broker.messages import ChatTurn, Json

Prompt = str | tuple[ChatTurn, ...]


@dataclass(frozen=True)
class Problem:
    """A generated question with its answer."""

    prompt: str
    answer: str
    solution: str | None = None
    """Worked solution for the warm-up; None: the answer alone."""
    difficulty: float | None = None
    options: Json = field(default_factory=dict)
    """What the verifier needs beside the answer."""


@dataclass(frozen=True)
class Item:
    """One row of a dataset, checked."""

    index: int
    """Of the row in its file, or of the problem in its generator; never reused for another."""
    prompt: Prompt
    target: str | None
    """None: unlabelled."""
    solution: str | None
    difficulty: float | None
    options: Json = field(default_factory=dict)
    verifier: Json | None = None
    """None: the source's."""
    level: str | None = None


@dataclass(frozen=True)
class ItemSet:
    """Items that share a dataset and its version."""

    dataset: str
    version: str
    """First 12 hex digits of a sha256 over the content."""
    items: Sequence[Item]
    skipped: tuple[str, ...] = ()
    """Why rows were left out, one line each."""

    def key(self, item: Item) -> str:
        return f"{self.dataset}:{self.version}:{item.index}"
