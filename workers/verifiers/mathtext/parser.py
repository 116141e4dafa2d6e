"""Recursive descent over tokens: text to tree. The whole text is read, or it is refused."""

from fractions import Fraction

from workers.verifiers.mathtext.tokens import tokens
from workers.verifiers.mathtext.tree import (
    MAX_CHARS,
    Node,
    TooLarge,
    Unreadable,
    depth,
    number,
    render,
)
from workers.verifiers.mathtext.vocabulary import FUNCTIONS, GREEK, LETTER_WRAPPERS

MAX_DEPTH = 60
"""Of brackets."""
MAX_TREE_DEPTH = 120
"""Evaluation recurses; a chain of as many operations is no answer."""
_NO_FACTORS = ("cdot", "times", "div", "rfloor", "rceil")


def parse(text: str) -> Node:
    """The tree of a whole text. Raises Unreadable or TooLarge."""
    if len(text) > MAX_CHARS:
        raise TooLarge(f"{len(text)} characters; the limit is {MAX_CHARS}")
    tree = _Parser(tokens(text)).whole()
    if depth(tree) > MAX_TREE_DEPTH:
        raise TooLarge(f"an expression of more than {MAX_TREE_DEPTH} levels")
    return tree


class _Parser:
    """Recursive descent; juxtaposition multiplies, and binds like multiplication."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0
        self._bars = 0

    def whole(self) -> Node:
        node = self._sum()
        if self._at < len(self._tokens):
            raise Unreadable(f"cannot read from {self._peek()[1]!r}")
        return node

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")

    def _take(self, *values: str) -> str | None:
        kind, value = self._peek()
        if kind != "end" and value in values:
            self._at += 1
            return value
        return None

    def _need(self, value: str) -> None:
        if self._take(value) is None:
            raise Unreadable(f"expected {value!r} before {self._peek()[1]!r}")

    def _sum(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise TooLarge(f"nested deeper than {MAX_DEPTH}")
        terms = [self._product()]
        while sign := self._take("+", "-"):
            term = self._product()
            terms.append(("neg", term) if sign == "-" else term)
        self._depth -= 1
        return terms[0] if len(terms) == 1 else ("add", *terms)

    def _product(self) -> Node:
        node = self._signed()
        while True:
            if self._take("*", "cdot", "times"):
                node = ("mul", node, self._signed())
            elif self._take("/", "div"):
                node = ("div", node, self._signed())
            elif self._starts_factor():
                node = self._juxtaposed(node)
            else:
                return node

    def _juxtaposed(self, node: Node) -> Node:
        before, (kind, value) = self._tokens[self._at - 1], self._peek()
        if kind == "num" and before[0] == "num":
            return self._mixed(node)
        if value == "frac" and before[0] == "num" and node[0] in ("num", "neg"):
            return self._mixed(node)
        if kind == "num":
            raise Unreadable(f"number {value!r} after {before[1]!r}")
        return ("mul", node, self._power())

    def _mixed(self, whole: Node) -> Node:
        """`2 1/2` and `2\\frac{1}{2}`: a whole number and a proper fraction."""
        if self._peek()[0] == "num":
            over = self._number()
            self._need("/")
            under = self._number()
        else:
            fraction = self._atom()
            over, under = fraction[1], fraction[2]
        sign = -1 if whole[0] == "neg" else 1
        amount = whole[1] if sign == 1 else whole[1][1]
        parts = (("num", amount), over, under)
        if not all(part[0] == "num" and part[1].denominator == 1 for part in parts):
            if whole[0] == "num" and over[0] != "num":
                return ("mul", whole, ("div", over, under))
            raise Unreadable("a fraction after a number that is no mixed number")
        if not 0 <= over[1] < under[1]:
            raise Unreadable("an improper fraction after a whole number")
        return ("num", sign * (amount + over[1] / under[1]))

    def _number(self) -> Node:
        kind, value = self._peek()
        if kind != "num":
            raise Unreadable(f"expected a number before {value!r}")
        self._at += 1
        return number(value)

    def _starts_factor(self) -> bool:
        kind, value = self._peek()
        if kind == "op":
            return value in ("(", "[", "{") or (value == "|" and not self._bars)
        return kind == "num" or (kind == "word" and value not in _NO_FACTORS)

    def _signed(self) -> Node:
        negative = False
        while sign := self._take("-", "+"):
            negative ^= sign == "-"
        node = self._power()
        if not negative:
            return node
        return (
            ("num", -node[1]) if node[0] == "num" and self._peek()[1] != "frac" else ("neg", node)
        )

    def _power(self) -> Node:
        node = self._postfixed(self._atom())
        if self._take("^", "**"):
            return self._postfixed(("pow", node, self._exponent()))
        return node

    def _postfixed(self, node: Node) -> Node:
        while mark := self._take("!", "%"):
            node = ("fact", node) if mark == "!" else ("div", node, ("num", Fraction(100)))
        return node

    def _exponent(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise TooLarge(f"nested deeper than {MAX_DEPTH}")
        if self._take("-"):
            node: Node = ("neg", self._argument())
        else:
            node = self._argument()
        if self._take("^", "**"):
            node = ("pow", node, self._exponent())
        self._depth -= 1
        return node

    def _argument(self) -> Node:
        """A LaTeX argument: a braced expression, or one token (`\\frac12` has one-digit arguments)."""
        if self._take("{"):
            node = self._sum()
            self._need("}")
            return node
        return self._atom()

    def _one_digit_argument(self) -> Node:
        kind, value = self._peek()
        if kind == "num" and value.isdigit() and len(value) > 1:
            self._tokens[self._at] = ("num", value[1:])
            return number(value[0])
        return self._argument()

    def _atom(self) -> Node:
        kind, value = self._peek()
        if kind == "num":
            return self._number()
        self._at += 1
        if kind == "word":
            return self._word(value)
        closing = {"(": ")", "[": "]", "{": "}"}.get(value)
        if closing:
            node = self._sum()
            self._need(closing)
            return node
        if value == "|":
            self._bars += 1
            node = self._sum()
            self._need("|")
            self._bars -= 1
            return ("abs", node)
        raise Unreadable(f"expected an expression before {value!r}" if value else "ends too early")

    def _word(self, name: str) -> Node:
        if name == "frac":
            over = self._one_digit_argument()
            return ("div", over, self._one_digit_argument())
        if name == "binom":
            upper = self._one_digit_argument()
            return ("binom", upper, self._one_digit_argument())
        if name == "sqrt":
            return self._root()
        if name == "log" or name in FUNCTIONS:
            return self._function(name)
        if name == "abs":
            return ("abs", self._argument())
        if name in ("lfloor", "lceil"):
            node = self._sum()
            self._need("r" + name[1:])
            return ("fn", name[1:], node)
        if name in ("pi", "infty", "infinity"):
            return ("const", "pi" if name == "pi" else "inf")
        if name in LETTER_WRAPPERS:
            return self._wrapped(name)
        if len(name) > 1 and name not in GREEK:
            raise Unreadable(f"command {name!r}")
        return self._symbol(name)

    def _wrapped(self, name: str) -> Node:
        """`\\mathrm{e}`: a letter in another face."""
        node = self._argument()
        if node[0] not in ("sym", "const"):
            raise Unreadable(f"\\{name} around something other than a letter")
        return node

    def _symbol(self, name: str) -> Node:
        if name in ("e", "i") and self._peek()[1] != "_":
            return ("const", name)
        while self._take("'"):
            name += "'"
        if self._take("_"):
            kind, _ = self._peek()
            name += "_" + (render(self._one_digit_argument()) if kind != "end" else "")
        return ("sym", name)

    def _root(self) -> Node:
        degree: Node = ("num", Fraction(2))
        if self._take("["):
            degree = self._sum()
            self._need("]")
        return ("root", self._one_digit_argument(), degree)

    def _function(self, name: str) -> Node:
        base: Node = ("num", Fraction(10)) if name == "log" else ("const", "e")
        power: Node | None = None
        for _ in range(2):
            if self._take("_"):
                base = self._one_digit_argument()
            elif self._take("^", "**"):
                power = self._exponent()
        argument = self._function_argument()
        node: Node = ("log", argument, base) if name in ("log", "ln") else ("fn", name, argument)
        if power is None:
            return node
        if power == ("num", Fraction(-1)):
            return ("fn", "arc" + name, argument)
        return ("pow", node, power)

    def _function_argument(self) -> Node:
        """`\\sin(x)` takes the brackets; `\\sin 2x` everything up to the next sign, function or end."""
        if self._peek()[1] in ("(", "{", "[", "|"):
            return self._postfixed(self._atom())
        node = self._signed()
        while self._starts_factor() and self._peek()[1] not in (*FUNCTIONS, "log", "(", "["):
            node = self._juxtaposed(node)
        return node
