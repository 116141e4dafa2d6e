"""BLEU against one or more references, by sacrebleu: sentence level, smoothed, 0..1."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from broker.errors import BadConfiguration
from broker.messages import Json
from workers.verifiers.mathtext.extract import last_tag
from workers.verifiers.protocol import (
    Canary,
    Finding,
    Ungradable,
    Verifier,
    judged,
    no_answer,
    ungradable,
)

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU

INSTALL = "pip install --constraint ops/constraints.txt '.[verifiers]'"
ANSWER_CHARS = 20_000


class Bleu(Verifier):
    """For translations and summaries. The target, and the item's `references` beside it, are references."""

    version: ClassVar[str] = "1"
    canaries: ClassVar = (
        Canary("the cat sat on the mat", "the cat sat on the mat", 1.0),
        Canary("dogs bark", "the cat sat on the mat", 0.0),
    )

    tokenize: Literal["13a", "intl", "char", "zh", "none"] = "13a"
    """`zh` and `char` for languages without spaces."""
    lowercase: bool = False
    max_order: Annotated[int, Field(ge=1, le=4)] = 4
    tag: str | None = None
    """Only what stands in the last `<tag>` is the answer; None: all that follows `</think>`."""

    def ready(self) -> None:
        _sacrebleu()

    def check(self, target: str | None, item: Json) -> None:
        if target is not None:
            _references(target, item)

    def pays_partly(self) -> bool:
        return True

    def grade(self, response: str, target: str | None, item: Json) -> Finding:
        text = response.rpartition("</think>")[2]
        answer = (last_tag(text, self.tag) if self.tag else text) or ""
        answer = " ".join(answer.split())
        if not answer:
            return no_answer("empty" if self.tag is None else f"no <{self.tag}>")
        if target is None:
            return ungradable("no target", answer, answer)
        if len(answer) > ANSWER_CHARS:
            return judged(
                0.0, answer, None, f"{len(answer)} characters; the limit is {ANSWER_CHARS}"
            )
        metric = _metric(self.tokenize, self.lowercase, self.max_order)
        found = metric.sentence_score(answer, list(_references(target, item)))
        # Rounding may end a hair above 1; without one word in common smoothing would still pay.
        score = min(found.score / 100, 1.0) if found.counts[0] else 0.0
        return judged(score, answer, answer, f"precisions {_rounded(found.precisions)}")

    def stated(self, target: str, item: Json) -> str:
        return f"<{self.tag}>{target}</{self.tag}>" if self.tag else target


def _references(target: str, item: Json) -> tuple[str, ...]:
    further = item.get("references", [])
    if not isinstance(further, list) or not all(isinstance(text, str) for text in further):
        raise Ungradable(f"references {further!r:.60}: expected a list of texts")
    references = tuple(" ".join(text.split()) for text in (target, *further))
    if not all(references):
        raise Ungradable("references: expected texts that are not empty")
    return references


def _rounded(precisions: list[float]) -> list[float]:
    return [round(value / 100, 3) for value in precisions]


def _metric(tokenize: str, lowercase: bool, max_order: int) -> "BLEU":
    _sacrebleu()
    from sacrebleu.metrics.bleu import BLEU

    # effective_order: a text of three words has no four in a row, which is not its fault.
    return BLEU(
        tokenize=tokenize, lowercase=lowercase, max_ngram_order=max_order, effective_order=True
    )


def _sacrebleu() -> None:
    try:
        import sacrebleu as _installed  # noqa: F401
    except ImportError as error:
        raise BadConfiguration(f"verifier bleu: sacrebleu is not installed: {INSTALL}") from error
