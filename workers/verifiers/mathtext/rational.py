"""Exact values of expression trees, where they are rational.

Every operation is bounded before it is done: what would need too many bits raises TooLarge. Division by zero
raises Undefined.
"""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction

import mpmath

from workers.verifiers.mathtext.tree import Node, TooLarge

MAX_BITS = 100_000
"""Of numerator or denominator of an exact value."""
MAX_FACTORIAL = 5_000


class Undefined(Exception):
    """The expression has no value (1/0, log 0)."""


def exact(node: Node) -> Fraction | None:
    """The value as a fraction; None when it is not rational or not seen to be."""
    operation = _EXACT.get(node[0])
    return operation(node) if operation else None


def _all(parts: tuple[Node, ...]) -> list[Fraction] | None:
    values = [exact(part) for part in parts]
    return None if None in values else [value for value in values if value is not None]


def _small(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise TooLarge(f"a number of more than {MAX_BITS} bits")
    return value


def _sum(node: Node) -> Fraction | None:
    values = _all(node[1:])
    return None if values is None else _small(sum(values, Fraction(0)))


def _product(node: Node) -> Fraction | None:
    values = _all(node[1:])
    if values is None:
        return None
    result = Fraction(1)
    for value in values:
        result = _small(result * value)
    return result


def _quotient(node: Node) -> Fraction | None:
    under = exact(node[2])
    if under == 0:
        raise Undefined("division by zero")
    over = exact(node[1])
    return None if over is None or under is None else _small(over / under)


def _power(node: Node) -> Fraction | None:
    base, exponent = exact(node[1]), exact(node[2])
    if base is None or exponent is None:
        return None
    if base == 0 and exponent <= 0:
        raise Undefined("0 to a power that is not positive")
    if exponent.denominator != 1:
        return _rational_root(base, exponent)
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits > 1 and bits * abs(exponent.numerator) > MAX_BITS:
        raise TooLarge("a power with too many digits")
    # Of 0, 1 and -1 only the exponent's parity matters.
    power = exponent.numerator if bits > 1 else exponent.numerator % 2 or 2
    return base**power


def _rational_root(base: Fraction, exponent: Fraction) -> Fraction | None:
    """base^(p/q) when it is rational and base is not negative."""
    degree = exponent.denominator
    if base < 0 or degree > 64:
        return None
    over, under = _whole_root(base.numerator, degree), _whole_root(base.denominator, degree)
    if over is None or under is None:
        return None
    return _power(("pow", ("num", Fraction(over, under)), ("num", Fraction(exponent.numerator))))


def _whole_root(value: int, degree: int) -> int | None:
    if degree == 2:
        root = math.isqrt(value)
    else:
        if value.bit_length() > 2_000:
            return None
        with mpmath.workdps(700):
            root = int(mpmath.nint(mpmath.root(value, degree)))
    return root if root**degree == value else None


def _root(node: Node) -> Fraction | None:
    base, degree = exact(node[1]), exact(node[2])
    if base is None or degree is None or degree.denominator != 1 or degree < 1:
        return None
    if base < 0 and degree % 2 == 1:
        root = _rational_root(-base, 1 / degree)
        return None if root is None else -root
    return _rational_root(base, 1 / degree) if degree > 1 else base


def _factorial(node: Node) -> Fraction | None:
    value = exact(node[1])
    if value is None or value.denominator != 1:
        return None
    if value < 0:
        raise Undefined("factorial of a negative number")
    if value > MAX_FACTORIAL:
        raise TooLarge(f"factorial of {str(value)[:12]}")
    return Fraction(math.factorial(value.numerator))


def _binomial(node: Node) -> Fraction | None:
    upper, lower = exact(node[1]), exact(node[2])
    if upper is None or lower is None or upper.denominator != 1 or lower.denominator != 1:
        return None
    if upper < 0 or lower < 0:
        return None
    if min(lower, upper - lower) * max(upper.numerator.bit_length(), 1) > MAX_BITS:
        raise TooLarge("a binomial coefficient with too many digits")
    return Fraction(math.comb(upper.numerator, lower.numerator))


def _negative(node: Node) -> Fraction | None:
    value = exact(node[1])
    return None if value is None else -value


def _absolute(node: Node) -> Fraction | None:
    value = exact(node[1])
    return None if value is None else abs(value)


def _rounded(node: Node) -> Fraction | None:
    value = exact(node[2])
    rounding = {"floor": math.floor, "ceil": math.ceil}.get(node[1])
    return Fraction(rounding(value)) if rounding and value is not None else None


_EXACT: Mapping[str, Callable[[Node], Fraction | None]] = {
    "num": lambda node: node[1],
    "add": _sum, "mul": _product, "div": _quotient, "pow": _power, "neg": _negative, "root": _root,
    "fact": _factorial, "binom": _binomial, "abs": _absolute, "fn": _rounded,
}  # fmt: skip
