"""Expressions as trees: nested tuples, the operator first. Reading costs time linear in the text.

("num", Fraction) ("sym", name) ("const", "pi" | "e" | "i" | "inf")
("add", a, b, ...) ("mul", a, b, ...) ("div", a, b) ("pow", a, b) ("neg", a)
("root", a, n) ("fact", a) ("abs", a) ("binom", n, k) ("log", a, base) ("fn", name, a)
"""

from fractions import Fraction
from typing import Any

from workers.verifiers.mathtext.vocabulary import GREEK

Node = tuple[Any, ...]
"""Of the shapes above; the type checker cannot follow a recursive tuple of mixed arity."""

MAX_CHARS = 2_000
MAX_DIGITS = 1_000


class Unreadable(Exception):
    """The text is not an answer this package can read; the message says why."""


class TooLarge(Exception):
    """Reading or evaluating would cost too much; the message says what."""


def number(text: str) -> Node:
    """A literal: `1,000`, `.5`, `3.`, `1.2e6`; exponents beyond four digits are refused."""
    mantissa, _, exponent = text.replace(",", "").lower().partition("e")
    if len(exponent) > 4:
        raise TooLarge(f"exponent {exponent[:10]}")
    whole, _, decimals = mantissa.partition(".")
    value = Fraction(int((whole or "0") + decimals), 10 ** len(decimals))
    return ("num", value * Fraction(10) ** int(exponent or 0))


def depth(node: Node) -> int:
    """Levels of a tree; without recursion, since it guards those that recurse."""
    deepest, open_nodes = 0, [(node, 1)]
    while open_nodes:
        at, level = open_nodes.pop()
        deepest = max(deepest, level)
        open_nodes += [(part, level + 1) for part in at[1:] if isinstance(part, tuple)]
    return deepest


def symbols(node: Node) -> frozenset[str]:
    """The free symbols of a tree."""
    if node[0] == "sym":
        return frozenset((node[1],))
    return frozenset().union(*(symbols(part) for part in node[1:] if isinstance(part, tuple)))


def render(node: Node) -> str:
    """A tree as text, operands of sums and products in one order: a key, readable by the parser."""
    kind = node[0]
    if kind == "num":
        return str(node[1]) if node[1].denominator == 1 else f"({node[1]})"
    if kind in ("sym", "const"):
        name = "infty" if node[1] == "inf" else str(node[1])
        return f"\\{name} " if name in GREEK or name in ("pi", "infty") else name
    if kind in ("add", "mul"):
        flat = _flattened(node, kind)
        return "(" + (" + " if kind == "add" else "*").join(sorted(map(render, flat))) + ")"
    parts = [render(part) for part in node[1:] if isinstance(part, tuple)]
    if kind == "fn":
        return f"\\{node[1]}({parts[0]})"
    return _FORMS[kind].format(*parts)


_FORMS = {
    "neg": "(-{0})", "div": "({0}/{{{1}}})", "pow": "({0}^{{{1}}})", "root": "\\sqrt[{1}]{{{0}}}",
    "fact": "{0}!", "abs": "|{0}|", "binom": "\\binom{{{0}}}{{{1}}}", "log": "\\log_{{{1}}}({0})",
}  # fmt: skip


def _flattened(node: Node, kind: str) -> list[Node]:
    if node[0] != kind:
        return [node]
    return [leaf for part in node[1:] for leaf in _flattened(part, kind)]
