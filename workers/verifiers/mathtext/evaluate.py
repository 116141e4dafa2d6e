"""Values of expression trees to 40 digits, and their equality: exact, then numeric, then at fixed points.

Every operation is bounded before it is done; beyond that it raises TooLarge.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import mpmath

from workers.verifiers.mathtext.rational import MAX_FACTORIAL, Undefined, exact
from workers.verifiers.mathtext.tree import Node, TooLarge, symbols

MAX_LOG2 = 40_000.0
"""Magnitude of a numeric value, as the power of two."""
POINTS = 6
DIGITS = 40

Number = Any
"""An mpmath real or complex; mpmath states no types."""


def numeric(node: Node, at: Mapping[str, Fraction], digits: int = DIGITS) -> Number:
    """The value to `digits` digits with the symbols set; real if it is. TooLarge, Undefined."""
    with mpmath.workdps(digits):
        try:
            value = _numeric(node, at)
        except (ZeroDivisionError, ValueError, OverflowError) as error:
            raise Undefined(str(error)) from error
        if mpmath.isnan(value):
            raise Undefined("not a number")
        return value


def _numeric(node: Node, at: Mapping[str, Fraction]) -> Number:
    kind = node[0]
    if kind == "num":
        return _bounded(_ratio(node[1]))
    if kind == "sym":
        return _ratio(at[node[1]])
    if kind == "const":
        return {"pi": mpmath.pi, "e": mpmath.e, "i": mpmath.mpc(0, 1), "inf": mpmath.inf}[
            node[1]
        ] * 1
    if kind == "fn":
        return _bounded(_function(node[1], _numeric(node[2], at)))
    parts = [_numeric(part, at) for part in node[1:]]
    return _bounded(_OPERATIONS[kind](*parts))


def _ratio(value: Fraction) -> Number:
    return mpmath.mpf(value.numerator) / value.denominator


def _log2(value: Number) -> float:
    """Power of two of the magnitude; -inf for 0."""
    return float(mpmath.mag(value)) if value and mpmath.isfinite(value) else -math.inf


def _bounded(value: Number) -> Number:
    if abs(_log2(value)) > MAX_LOG2 and _log2(value) != -math.inf:
        raise TooLarge("a number out of range")
    return value


def _raise(base: Number, exponent: Number) -> Number:
    if mpmath.isfinite(base) and mpmath.isfinite(exponent) and base:
        size = abs(float(mpmath.mag(base))) + 1.0
        if _log2(exponent) > 40 or size * float(abs(exponent)) > 2 * MAX_LOG2:
            raise TooLarge("a power out of range")
    return mpmath.power(base, exponent)


def _nth_root(base: Number, degree: Number) -> Number:
    if mpmath.im(base) == 0 and mpmath.re(base) < 0 and degree % 2 == 1:
        return -_raise(-base, 1 / degree)
    return _raise(base, 1 / degree)


def _gamma(value: Number) -> Number:
    if abs(value) > MAX_FACTORIAL:
        raise TooLarge("a factorial out of range")
    return mpmath.factorial(value)


def _choose(upper: Number, lower: Number) -> Number:
    if max(abs(upper), abs(lower)) > MAX_FACTORIAL:
        raise TooLarge("a binomial coefficient out of range")
    return mpmath.binomial(upper, lower)


def _logarithm(value: Number, base: Number) -> Number:
    if value == 0 or base in (0, 1):
        raise Undefined("logarithm")
    return mpmath.log(value) / mpmath.log(base)


_OPERATIONS: Mapping[str, Callable[..., Number]] = {
    "add": lambda *parts: mpmath.fsum(parts),
    "mul": lambda *parts: mpmath.fprod(parts),
    "div": lambda a, b: a / b,
    "pow": _raise, "neg": lambda a: -a, "root": _nth_root, "fact": _gamma, "abs": abs,
    "binom": _choose, "log": _logarithm,
}  # fmt: skip

_RENAMED = {
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arcsinh": "asinh", "arccosh": "acosh",
    "arctanh": "atanh", "arccot": "acot", "arcsec": "asec", "arccsc": "acsc",
}  # fmt: skip


def _function(name: str, value: Number) -> Number:
    name = _RENAMED.get(name, name)
    if name == "exp":
        return _raise(mpmath.e * 1, value)
    # Range reduction of a huge argument would need as many digits of pi; sinh would overflow.
    if _log2(value) > (12 if name in ("sinh", "cosh", "tanh") else 200):
        raise TooLarge(f"{name} of a number out of range")
    return getattr(mpmath, name)(value)


# --- equality -----------------------------------------------------------------------------------


def point(names: frozenset[str], number: int) -> dict[str, Fraction]:
    """Values for symbols, fixed by their names: two of three positive, none special."""
    values: dict[str, Fraction] = {}
    for name in names:
        raw = int.from_bytes(hashlib.sha256(f"{name}:{number}".encode()).digest()[:6], "big")
        size = Fraction(raw % 1_000_003 + 200_003, 400_009)
        values[name] = -size if number % 3 == 2 else size
    return values


def equal(left: Node, right: Node) -> bool:
    """Whether two expressions have the same value, exactly if both are rational, else numerically.

    With free symbols: at every fixed point where both are defined, and there must be two. Raises TooLarge,
    Undefined.
    """
    names = symbols(left) | symbols(right)
    if not names:
        first, second = exact(left), exact(right)
        if first is not None and second is not None:
            return first == second
        return _same_number(left, right, {})
    agreed = 0
    for number in range(POINTS):
        at = point(names, number)
        try:
            if not _same_number(left, right, at):
                return False
        except Undefined:
            continue
        agreed += 1
    if agreed < 2:
        raise Undefined("defined at fewer than two points")
    return True


def _same_number(left: Node, right: Node, at: Mapping[str, Fraction]) -> bool:
    first, second = numeric(left, at), numeric(right, at)
    if not (mpmath.isfinite(first) and mpmath.isfinite(second)):
        return bool(first == second)
    scale = max(abs(first), abs(second))
    difference: Node = ("add", left, ("neg", right))
    coarse = abs(numeric(difference, at))
    if coarse > scale * mpmath.mpf(10) ** -(DIGITS // 2) and scale > mpmath.mpf(10) ** -(
        DIGITS // 2
    ):
        return False
    # A difference that is zero shrinks with every digit that is added; a tiny one does not.
    fine = abs(numeric(difference, at, 2 * DIGITS))
    noise = max(coarse, scale * mpmath.mpf(10) ** -DIGITS)
    return bool(fine <= noise * mpmath.mpf(10) ** -(DIGITS // 2))
