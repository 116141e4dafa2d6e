"""Overlap of training and evaluation texts: equal, equal once normalised, close in 13-grams, or contained.

Candidates come from an inverted index over n-grams, so that every pair that shares one is looked at; each is
then compared exactly. Texts of fewer than 13 words are compared by 5-grams (or all their words, if fewer) and
by whole-string containment.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

LONG, SHORT = 13, 5
JACCARD_LIMIT = 0.5
"""More than this is an overlap."""
CONTAINED = 0.8
"""So much of the smaller text's n-grams within the other is an overlap."""
LEAST_WORDS = 3
"""A shorter text is contained in many by chance: only equality counts."""
_KEPT = frozenset("+-*/=<>^%")
_JOINING = re.compile(r"['’]|(?<=\d),(?=\d{3})")
"""Vanish without a space: `it's` is one word, `1,000` one number."""

Gram = tuple[str, ...]


@dataclass(frozen=True)
class Text:
    """A prompt, normalised."""

    row: int
    """Its row's number, from 1."""
    raw: str
    words: Gram

    @classmethod
    def of(cls, row: int, raw: str) -> "Text":
        return cls(row, raw, tuple(normalised(raw).split()))


@dataclass(frozen=True)
class Overlap:
    """A pair of texts that have too much in common."""

    train: Text
    evaluation: Text
    kind: str
    """`exact`, `normalised`, `jaccard` or `contained`: the strongest that holds."""
    jaccard: float
    containment: float


def normalised(text: str) -> str:
    """NFKC, lower case, one space between words; punctuation goes, digits and operators stay."""
    folded = _JOINING.sub("", unicodedata.normalize("NFKC", text).lower())
    return " ".join("".join(c if c.isalnum() or c in _KEPT else " " for c in folded).split())


def grams(words: Gram, size: int) -> set[Gram]:
    return {words[at : at + size] for at in range(len(words) - size + 1)}


def measure(one: Text, other: Text) -> tuple[float, float]:
    """(Jaccard, containment of the smaller in the larger) of their n-grams."""
    shortest = min(len(one.words), len(other.words))
    if not shortest:
        return 0.0, 0.0
    size = LONG if shortest >= LONG else min(SHORT, shortest)
    left, right = grams(one.words, size), grams(other.words, size)
    both = len(left & right)
    jaccard = both / len(left | right)
    if shortest >= LONG:
        return jaccard, both / min(len(left), len(right))
    small, large = sorted((one.words, other.words), key=len)
    inside = f" {' '.join(small)} " in f" {' '.join(large)} "
    return jaccard, float(inside and len(small) >= LEAST_WORDS)


def judge(train: Text, evaluation: Text) -> Overlap | None:
    """What a pair has in common, if it is too much."""
    jaccard, containment = measure(train, evaluation)
    if train.raw == evaluation.raw:
        kind = "exact"
    elif train.words == evaluation.words:
        kind = "normalised"
    elif jaccard > JACCARD_LIMIT:
        kind = "jaccard"
    elif containment >= CONTAINED:
        kind = "contained"
    else:
        return None
    return Overlap(train, evaluation, kind, jaccard, containment)


class Index:
    """Evaluation texts by their n-grams."""

    def __init__(self, texts: Iterable[Text]) -> None:
        self._texts = list(texts)
        self._by_size: dict[int, dict[Gram, list[int]]] = {}
        self._sizes = {len(text.words) for text in self._texts if len(text.words) < LONG}

    def __len__(self) -> int:
        return len(self._texts)

    def overlaps(self, train: Text) -> Iterator[Overlap]:
        """Every evaluation text that a training text overlaps with."""
        for place in sorted(self._candidates(train)):
            found = judge(train, self._texts[place])
            if found is not None:
                yield found

    def _candidates(self, train: Text) -> set[int]:
        """Texts that share an n-gram of the size by which the pair would be compared."""
        count = len(train.words)
        if count >= LONG:
            sizes = {LONG, *(min(SHORT, size) for size in self._sizes)}
        else:
            # Shorter evaluation texts are compared by their own, smaller size.
            sizes = {min(SHORT, count), *(min(SHORT, size) for size in self._sizes if size < count)}
        found: set[int] = set()
        for size in sizes - {0}:
            index = self._of_size(size)
            for gram in grams(train.words, size):
                found.update(index.get(gram, ()))
        return found

    def _of_size(self, size: int) -> dict[Gram, list[int]]:
        if size not in self._by_size:
            index: dict[Gram, list[int]] = defaultdict(list)
            for place, text in enumerate(self._texts):
                for gram in grams(text.words, size):
                    index[gram].append(place)
            self._by_size[size] = dict(index)
        return self._by_size[size]


def audit(train: Iterable[Text], evaluation: Index) -> Iterator[Overlap]:
    """All overlaps, in the order of the training texts."""
    for text in train:
        yield from evaluation.overlaps(text)


def counts(found: Sequence[Overlap]) -> dict[str, int]:
    """Pairs by kind, and how many different evaluation texts they touch."""
    kinds = ("exact", "normalised", "jaccard", "contained")
    by_kind = {kind: sum(overlap.kind == kind for overlap in found) for kind in kinds}
    return by_kind | {"evaluation_rows": len({overlap.evaluation.row for overlap in found})}
