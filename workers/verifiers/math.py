"""Math: the last box, read by type, compared exactly where it is rational, to 40 digits where it is not.

What the package's own reader does not know (integrals, sums, limits) goes to math-verify, provided the answer
passes cheap guards. The process may be killed meanwhile, so math-verify's own timeouts are off.
"""

import re
from functools import lru_cache
from typing import ClassVar

from broker.messages import Json
from workers.verifiers.mathtext import compare, extract, keys, symbolic
from workers.verifiers.mathtext.extract import Fallback
from workers.verifiers.mathtext.normal import clean
from workers.verifiers.mathtext.rational import Undefined, exact
from workers.verifiers.mathtext.tree import MAX_CHARS, TooLarge, Unreadable
from workers.verifiers.mathtext.values import Quantity, Value, Written, read
from workers.verifiers.protocol import (
    Canary,
    Finding,
    Ungradable,
    Verifier,
    judged,
    no_answer,
    ungradable,
)

_PLAIN = re.compile(r"[-+]?\d{1,18}")


class Math(Verifier):
    """Mathematical answers of any usual form; see mathtext/compare.py for the policies."""

    version: ClassVar = "1"
    canaries: ClassVar = (
        Canary(r"so \boxed{\frac{1}{2}}", "0.5", 1.0),
        Canary(r"\boxed{50\%}", r"\frac12", 1.0),
        Canary(r"\boxed{50}", r"50\%", 0.0),
        Canary(r"\boxed{\frac{\sqrt{2}}{2}}", r"\frac{1}{\sqrt{2}}", 1.0),
        Canary(r"\boxed{.49}", "½", 0.0),
        Canary(r"\boxed{[1,2]}", "(1,2)", 0.0),
        Canary(r"\boxed{x^2-1}", "(x-1)(x+1)", 1.0),
        Canary(r"\boxed{\frac{1}{2^{98}}}", r"\frac{1}{2^{99}}", 0.0),
        Canary(r"\boxed{9^{9^{9^{9}}}}", "7", 0.0),
        Canary("7, I think.", "7", 0.0),
    )

    fallback: tuple[Fallback, ...] = ("hash", "final", "whole")
    """Where to look, in this order, when there is no box; empty: boxes only."""
    think: bool = True
    """Whether only what follows `</think>` is read."""
    bare_percent: bool = False
    """Whether a bare 50 counts as 50 %, for prompts that ask for a percentage."""

    def check(self, target: str | None, item: Json) -> None:
        if target is not None:
            gold(target)

    def grade(self, response: str, target: str | None, item: Json) -> Finding:
        found = extract.find(response, self.fallback, self.think)
        if target is not None and not _PLAIN.fullmatch(target):
            gold(target)
        if found.text is None:
            return no_answer(found.how)
        text = found.text.strip()
        if target is not None and _PLAIN.fullmatch(text) and _PLAIN.fullmatch(target):
            number = int(text)
            return judged(number == int(target), text, str(number), found.how)
        if len(text) > MAX_CHARS:
            return judged(False, text, None, f"{len(text)} characters; the limit is {MAX_CHARS}")
        if found.how == "whole" and _is_prose(text):
            return no_answer("no answer in the agreed form")
        answer, problem = _read(text)
        answer_key = _key(answer, text) if not problem or problem.startswith("unknown") else None
        if target is None:
            return ungradable(problem or "no target", text, answer_key)
        right, reason = self._right(gold(target), target, answer, text, problem)
        return judged(right, text, answer_key, reason or found.how)

    def stated(self, target: str, item: Json) -> str:
        return rf"\boxed{{{target}}}"

    def same(self, left: str, right: str, item: Json) -> bool | None:
        first, _ = _read(left)
        second, _ = _read(right)
        if first is None or second is None:
            return clean(left) == clean(right)
        try:
            return compare.same(first, second)
        except TooLarge:
            return None

    def _right(
        self,
        gold_value: Value | None,
        target: str,
        answer: Value | None,
        text: str,
        problem: str | None,
    ) -> tuple[bool, str]:
        """Whether the answer is the target, and a reason where it could not be compared."""
        if clean(text) == clean(target):
            return problem is None or problem.startswith("unknown"), problem or ""
        if gold_value is None or answer is None:
            if gold_value is not None and _is_simple(gold_value):
                return False, problem or ""
            if problem is not None and not problem.startswith("unknown"):
                return False, problem
            return symbolic.same(target, text)
        try:
            right = compare.same(gold_value, answer)
            if not right and self.bare_percent:
                right = _as_percent(gold_value, answer)
        except TooLarge as error:
            return False, f"too large: {error}"
        return right, ""


@lru_cache(maxsize=4096)
def gold(target: str) -> Value | None:
    """The target's value; None when only math-verify can read it. Raises Ungradable."""
    value, problem = _read(target)
    if value is not None:
        if isinstance(value, Quantity):
            try:
                exact(value.node)
            except Undefined as error:
                raise Ungradable(f"target {target[:80]!r}: {error}") from error
            except TooLarge:
                pass  # comparable as it is written
        return value
    if problem is None or not problem.startswith("unknown"):
        raise Ungradable(f"target {target[:80]!r}: {problem}")
    if not symbolic.readable(target):
        raise Ungradable(f"target {target[:80]!r}: {problem}")
    return None


@lru_cache(maxsize=4096)
def _read(text: str) -> tuple[Value | None, str | None]:
    """(value, None), or (None, why not); `unknown: ...` when another reader may know it."""
    try:
        return read(text), None
    except TooLarge as error:
        return None, f"too large: {error}"
    except Unreadable as error:
        final = str(error) in ("empty", "ellipsis", "approximation", "prose")
        return None, str(error) if final else f"unknown: {error}"


def _key(answer: Value | None, text: str) -> str:
    if answer is None:
        return clean(text)
    try:
        return keys.key(answer)
    except (TooLarge, OverflowError, ValueError):
        return clean(text)


def _is_prose(text: str) -> bool:
    """Whether a whole response is talk: several words, or nothing that can be read."""
    value, problem = _read(text)
    if value is None:
        return problem == "prose" or "word" in (problem or "")
    return isinstance(value, Written) and value.kind == "text" and " " in value.text


def _is_simple(value: Value) -> bool:
    """A rational number or a word: an answer that must be computed first is not that."""
    if isinstance(value, Quantity):
        try:
            return exact(value.node) is not None
        except (TooLarge, Undefined):
            return False
    return isinstance(value, Written)


def _as_percent(gold_value: Value, answer: Value) -> bool:
    """50 against 50 %, either way round."""
    if not (isinstance(gold_value, Quantity) and isinstance(answer, Quantity)):
        return False
    hundred = exact(("num", 100)) or 100
    shrunk = Quantity(("div", answer.node, ("num", hundred)), answer.unit)
    grown = Quantity(("mul", answer.node, ("num", hundred)), answer.unit)
    return compare.same(gold_value, shrunk) or compare.same(gold_value, grown)
