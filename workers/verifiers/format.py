"""Format: the required tags, each once, in order, not nested, none empty. Lenient: the share that occurs."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from broker.messages import Json
from workers.verifiers.protocol import Canary, Finding, Verifier, judged


class Format(Verifier):
    """Needs no target. The lenient mode is the usual one elsewhere, and is satisfied by empty tags."""

    version: ClassVar[str] = "1"
    canaries: ClassVar = (
        Canary("<think>x</think><answer>1</answer>", "", 1.0),
        Canary("<answer>1</answer><think>x</think>", "", 0.0),
    )

    tags: Annotated[tuple[str, ...], Field(min_length=1)] = ("think", "answer")
    mode: Literal["strict", "lenient"] = "strict"

    def pays_partly(self) -> bool:
        return self.mode == "lenient"

    def grade(self, response: str, target: str | None, item: Json) -> Finding:
        if self.mode == "lenient":
            present = sum(f"<{t}>" in response and f"</{t}>" in response for t in self.tags)
            return judged(present / len(self.tags), None, None, f"{present} of {len(self.tags)}")
        problem = self._problem(response)
        return judged(not problem, None, None, problem)

    def stated(self, target: str, item: Json) -> str:
        """All tags, the target in the last."""
        inside = [*["..."] * (len(self.tags) - 1), target]
        pairs = zip(self.tags, inside, strict=True)
        return "".join(f"<{tag}>{text}</{tag}>" for tag, text in pairs)

    def _problem(self, response: str) -> str:
        at = 0
        for tag in self.tags:
            opening, closing = f"<{tag}>", f"</{tag}>"
            if response.count(opening) != 1 or response.count(closing) != 1:
                return f"{tag}: expected exactly once"
            begin, end = response.find(opening), response.find(closing)
            if begin < at or end < begin:
                return f"{tag}: out of order"
            if not response[begin + len(opening) : end].strip():
                return f"{tag}: empty"
            at = end + len(closing)
        return ""
