"""A verifier of one's own: how much of a reversed word is right."""

from typing import ClassVar

from workers.verifiers.protocol import Canary, Finding, Verifier, judged, no_answer, ungradable


class Reversed(Verifier):
    """The share of letters that stand in their place; 1 only when all do."""

    version: ClassVar[str] = "1"
    """Change it whenever a verdict may change."""
    canaries: ClassVar = (Canary("cba", "cba", 1.0), Canary("cbx", "cba", 0.0))
    """Judged when a worker starts: one that gets another score refuses to work."""

    partial: bool = False
    """Options are fields: `verifier = { name = "./mine.py:Reversed", partial = true }`."""

    def pays_partly(self) -> bool:
        """Tells `sluice calibrate` that a wrong answer may get part of the credit."""
        return self.partial

    def grade(self, response: str, target: str | None, item: dict[str, object]) -> Finding:
        answer = response.strip()
        if not answer:
            return no_answer("empty")
        if target is None:
            return ungradable("no target", answer, answer)
        right = sum(a == b for a, b in zip(answer, target, strict=False))
        share = right / max(len(answer), len(target))
        return judged(share if self.partial else share == 1.0, answer, answer)
