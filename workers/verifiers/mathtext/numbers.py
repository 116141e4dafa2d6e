"""Equality of two expressions: exact, else to 40 digits, else a long decimal that the other rounds to."""

import mpmath

from workers.verifiers.mathtext.evaluate import DIGITS, equal, numeric
from workers.verifiers.mathtext.rational import Undefined, exact
from workers.verifiers.mathtext.tree import Node, symbols

FLOAT_DIGITS = 12
"""Significant digits from which a decimal may stand for a number that has more."""


def same_number(left: Node, right: Node) -> bool:
    if left == right:
        return _has_value(left)
    try:
        return equal(left, right) or _rounds(left, right) or _rounds(right, left)
    except Undefined:
        return False


def _has_value(node: Node) -> bool:
    """1/0 equals nothing, not even itself."""
    try:
        return exact(node) is not None or bool(symbols(node)) or numeric(node, {}) is not None
    except Undefined:
        return False


def _rounds(decimal: Node, other: Node) -> bool:
    """Whether a long decimal is what `other`, which never ends, is rounded or cut to."""
    value, endless = exact(decimal), exact(other)
    if value is None or value.denominator == 1 or symbols(other):
        return False
    if endless is not None and _places(endless.denominator) is not None:
        return False
    places = _places(value.denominator)
    digits = len(str(abs(value.numerator) * 10 ** (places or 0) // value.denominator))
    if places is None or digits < FLOAT_DIGITS:
        return False
    with mpmath.workdps(DIGITS):
        distance = abs(numeric(other, {}) - mpmath.mpf(value.numerator) / value.denominator)
        return bool(distance < mpmath.mpf(10) ** -places)


def _places(denominator: int) -> int | None:
    """Decimal places of a fraction in lowest terms with that denominator; None when it does not end."""
    twos = (denominator & -denominator).bit_length() - 1
    rest, fives = denominator >> twos, 0
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    return max(twos, fives) if rest == 1 and max(twos, fives) <= DIGITS else None
