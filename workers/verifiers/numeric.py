"""Numeric: a number within a stated tolerance of the target; for measurements and rounded answers."""

from fractions import Fraction
from typing import Annotated, ClassVar

from pydantic import Field

from broker.messages import Json
from workers.verifiers.mathtext import extract, units
from workers.verifiers.mathtext.extract import Fallback
from workers.verifiers.mathtext.rational import Undefined, exact
from workers.verifiers.mathtext.tree import TooLarge, Unreadable
from workers.verifiers.mathtext.values import Quantity, read
from workers.verifiers.protocol import (
    Canary,
    Finding,
    Ungradable,
    Verifier,
    judged,
    no_answer,
    ungradable,
)


class Numeric(Verifier):
    """Right when within `absolute`, or within `relative` times the target's size, whichever is wider."""

    version: ClassVar[str] = "1"
    canaries: ClassVar = (Canary(r"\boxed{1.0000001}", "1", 1.0), Canary(r"\boxed{1.1}", "1", 0.0))

    absolute: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    relative: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 1e-6
    fallback: tuple[Fallback, ...] = ("hash", "final", "whole")

    def check(self, target: str | None, item: Json) -> None:
        if target is not None:
            _number(target)

    def grade(self, response: str, target: str | None, item: Json) -> Finding:
        gold = None if target is None else _number(target)
        found = extract.find(response, self.fallback)
        if found.text is None:
            return no_answer(found.how)
        try:
            number, unit = _number(found.text)
        except Ungradable as error:
            return judged(False, found.text, None, str(error))
        if gold is None:
            return ungradable("no target", found.text, str(number))
        value, gold_unit = gold
        within = max(Fraction(self.absolute), Fraction(self.relative) * abs(value))
        right = abs(number - value) <= within and units.compatible(unit, gold_unit)
        return judged(right, found.text, str(number))

    def stated(self, target: str, item: Json) -> str:
        return rf"\boxed{{{target}}}"


def _number(text: str) -> tuple[Fraction, str]:
    """(value, unit) of a text that states a rational number; Ungradable otherwise."""
    try:
        value = read(text)
        number = exact(value.node) if isinstance(value, Quantity) else None
    except (TooLarge, Unreadable, Undefined) as error:
        raise Ungradable(f"{text[:80]!r}: {error}") from error
    if not isinstance(value, Quantity) or number is None:
        raise Ungradable(f"{text[:80]!r}: expected a rational number")
    return number, value.unit
