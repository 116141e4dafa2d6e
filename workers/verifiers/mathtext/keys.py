"""Canonical text of an answer: equal for equal answers wherever that is cheap to see."""

import mpmath

from workers.verifiers.mathtext.compare import stated
from workers.verifiers.mathtext.evaluate import DIGITS, numeric
from workers.verifiers.mathtext.rational import Undefined, exact
from workers.verifiers.mathtext.tree import Node, render, symbols
from workers.verifiers.mathtext.values import Items, Matrix, Quantity, Relation, Union, Value


def key(value: Value) -> str:
    """Canonical text of an answer, readable again: 1/2 for .5, 50 % and \\frac{2}{4}."""
    match value:
        case Quantity(node=node, unit=unit):
            return _number_key(node) + (f" \\text{{{unit}}}" if unit else "")
        case Items(kind="brackets", items=items, shape=shape):
            return shape[0] + ", ".join(map(key, items)) + shape[-1]
        case Items(kind=kind, items=items):
            inside = ", ".join(sorted(map(key, items)))
            return inside if kind == "list" else f"\\{{{inside}\\}}"
        case Union(parts=parts):
            return r" \cup ".join(sorted(map(key, parts)))
        case Relation(sides=sides, operators=operators):
            plain = stated(value, sides[-1])
            if set(operators) == {"="} and not isinstance(plain, Relation):
                return key(plain)
            words = [key(sides[0])]
            for operator, side in zip(operators, sides[1:], strict=True):
                words += ["\\in" if operator == "in" else operator, key(side)]
            return " ".join(words)
        case Matrix(rows=rows):
            body = r" \\ ".join(" & ".join(map(key, row)) for row in rows)
            return f"\\begin{{pmatrix}}{body}\\end{{pmatrix}}"
        case _:
            return value.text


def _number_key(node: Node) -> str:
    try:
        value = exact(node)
        if value is not None:
            return str(value)
        if symbols(node) or "inf" in str(node):
            return render(node)
        number = numeric(node, {})
    except Undefined:
        return render(node)
    with mpmath.workdps(DIGITS):
        real, imaginary = (str(mpmath.nstr(part(number), 15)) for part in (mpmath.re, mpmath.im))
    return real if imaginary == "0.0" else f"{real} + {imaginary} i"
