"""Exact: the whole answer, without surrounding space, is the target."""

from typing import ClassVar

from broker.messages import Json
from workers.verifiers.protocol import (
    Canary,
    Finding,
    Ungradable,
    Verifier,
    judged,
    no_answer,
    ungradable,
)


class Exact(Verifier):
    """Text equality after trimming; for tasks whose answers have one form."""

    canaries: ClassVar = (Canary(" 42\n", "42", 1.0), Canary("42.", "42", 0.0))

    ignore_case: bool = False
    after: str = ""
    """Only what follows the last occurrence of this marker is the answer; empty: all of it."""

    def check(self, target: str | None, item: Json) -> None:
        if target is not None and not target.strip():
            raise Ungradable(f"target {target!r}: expected text to compare with")

    def grade(self, response: str, target: str | None, item: Json) -> Finding:
        if self.after:
            _, marker, response = response.rpartition(self.after)
            if not marker:
                return no_answer(f"no marker {self.after!r}")
        answer = response.strip()
        if not answer:
            return no_answer("empty")
        key = self._key(answer)
        if target is None or not target.strip():
            return ungradable("no target", answer, key)
        return judged(key == self._key(target.strip()), answer, key)

    def stated(self, target: str, item: Json) -> str:
        return f"{self.after}{target}"

    def _key(self, text: str) -> str:
        return text.casefold() if self.ignore_case else text
