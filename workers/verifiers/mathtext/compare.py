"""Whether two answers are the same. Symmetric: which one is the gold makes no difference.

Policies where usage differs, each chosen so that a wrong answer is not rewarded:

percent    p % is p/100; a bare 50 is not 50 %
unit       equal, or one missing; nothing is converted (1 m is not 100 cm, 90 degrees are not pi/2)
relation   `x < 3` and `x in (-oo, 3)` are the interval; `x = 5` is 5; `3 + 4 = 7` is 7 because it is true
rounding   0.3333 is not 1/3; a decimal of 12 or more significant digits is the number it rounds or cuts
order      a bare list and a set have no order; a tuple has, and is neither; (1,2) is not [1,2]; {7} is not 7
words      case does not count, but for single letters; ratios and clock times are compared as written
"""

from fractions import Fraction

import mpmath

from workers.verifiers.mathtext import units
from workers.verifiers.mathtext.evaluate import equal, numeric, point
from workers.verifiers.mathtext.numbers import same_number
from workers.verifiers.mathtext.rational import Undefined
from workers.verifiers.mathtext.tree import Node, symbols
from workers.verifiers.mathtext.values import (
    Items,
    Matrix,
    Quantity,
    Relation,
    Union,
    Value,
    Written,
)

MAX_ITEMS = 40
_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}


def same(left: Value, right: Value) -> bool:
    """Whether two answers are the same. Raises TooLarge; an undefined expression equals nothing."""
    left, right = _plain(left, right)
    if isinstance(left, Quantity) and isinstance(right, Quantity):
        return units.compatible(left.unit, right.unit) and same_number(left.node, right.node)
    if type(left) is not type(right):
        return False
    match left, right:
        case Items(), Items():
            return _same_items(left, right)
        case Union(), Union():
            return _matched(left.parts, right.parts)
        case Relation(), Relation():
            return _same_relation(left, right)
        case Matrix(), Matrix():
            return _same_matrix(left, right)
        case _:
            return left == right


def _same_matrix(left: Matrix, right: Matrix) -> bool:
    return len(left.rows) == len(right.rows) and all(
        len(a) == len(b) and all(map(same, a, b))
        for a, b in zip(left.rows, right.rows, strict=True)
    )


def _same_items(left: Items, right: Items) -> bool:
    if "brackets" in (left.kind, right.kind):
        return (
            (left.kind, left.shape, len(left.items)) == (right.kind, right.shape, len(right.items))
        ) and all(map(same, left.items, right.items))
    if left.kind == right.kind == "list":
        return _matched(left.items, right.items)
    if min(len(left.items), len(right.items)) < 2 and left.kind != right.kind:
        return False
    return _matched(_distinct(left.items), _distinct(right.items))


def _distinct(items: tuple[Value, ...]) -> tuple[Value, ...]:
    kept: list[Value] = []
    for item in items[:MAX_ITEMS]:
        if not any(same(item, other) for other in kept):
            kept.append(item)
    return tuple(kept)


def _matched(left: tuple[Value, ...], right: tuple[Value, ...]) -> bool:
    """Equal as multisets."""
    if len(left) != len(right) or len(left) > MAX_ITEMS:
        return False
    rest = list(right)
    for item in left:
        found = next((i for i, other in enumerate(rest) if same(item, other)), None)
        if found is None:
            return False
        del rest[found]
    return True


# --- relations ----------------------------------------------------------------------------------


def _plain(left: Value, right: Value) -> tuple[Value, Value]:
    """Both without the name that only one of them states (`x = 5` against 5), relations as intervals."""
    if isinstance(left, Relation) and not isinstance(right, Relation):
        left = stated(left, right)
    elif isinstance(right, Relation) and not isinstance(left, Relation):
        right = stated(right, left)
    return left, right


def stated(relation: Relation, other: Value) -> Value:
    """What a relation says about its one unknown, where the other side is no relation."""
    if set(relation.operators) == {"="}:
        sides = relation.sides[1:] if _is_name(relation.sides[0]) else relation.sides
        numbers = all(not isinstance(side, Quantity) or not symbols(side.node) for side in sides)
        if (len(sides) == 1 or numbers) and all(same(side, sides[-1]) for side in sides[:-1]):
            return sides[-1]
        return relation
    if relation.operators == ("in",) and _is_name(relation.sides[0]):
        return relation.sides[1]
    if isinstance(other, Items | Union):
        return _interval(relation) or relation
    return relation


def _is_name(value: Value) -> bool:
    """A symbol, `f(x)`, a word, or a tuple of symbols: what an answer may be introduced with."""
    match value:
        case Written(kind="text"):
            return True
        case Quantity(node=node):
            applied = node[0] == "mul" and len(node) == 3 and node[1][0] == node[2][0] == "sym"
            return node[0] == "sym" or applied
        case Items(kind="brackets", items=items):
            return all(isinstance(item, Quantity) and item.node[0] == "sym" for item in items)
        case _:
            return False


_INFINITY: Node = ("const", "inf")


def _interval(relation: Relation) -> Items | None:
    """`a < x <= b` or `x < b` as brackets with their shape; None for anything else."""
    sides, operators = relation.sides, relation.operators
    if any(operator not in ("<", "<=", ">", ">=") for operator in operators):
        return None
    if operators[0] in (">", ">="):
        sides, operators = sides[::-1], tuple(_MIRRORED[o] for o in reversed(operators))
    low, high = Quantity(("neg", _INFINITY)), Quantity(_INFINITY)
    if len(sides) == 2:
        if _is_symbol(sides[0]):
            return Items("brackets", (low, sides[1]), "(" + ("]" if operators[0] == "<=" else ")"))
        if _is_symbol(sides[1]):
            return Items("brackets", (sides[0], high), ("[" if operators[0] == "<=" else "(") + ")")
        return None
    if len(sides) != 3 or not _is_symbol(sides[1]) or set(operators) - {"<", "<="}:
        return None
    shape = ("[" if operators[0] == "<=" else "(") + ("]" if operators[1] == "<=" else ")")
    return Items("brackets", (sides[0], sides[2]), shape)


def _is_symbol(value: Value) -> bool:
    return isinstance(value, Quantity) and value.node[0] == "sym"


def _same_relation(left: Relation, right: Relation) -> bool:
    if _reading(left) and _reading(right):
        # `x = 3 + 4 = 7` against `x = 7`: the name and the last side count.
        return same(left.sides[0], right.sides[0]) and same(
            stated(left, left.sides[-1]), stated(right, right.sides[-1])
        )
    first, second = _interval(left), _interval(right)
    if first and second and _unknown(left) == _unknown(right):
        return same(first, second)
    if left.operators != right.operators or len(left.operators) != 1:
        mirrored = Relation(
            right.sides[::-1], tuple(_MIRRORED.get(o, o) for o in right.operators[::-1])
        )
        if left.operators != mirrored.operators:
            return False
        right = mirrored
    if len(left.sides) == 2 and left.operators[0] != "in" and _proportional(left, right):
        return True
    return len(left.sides) == len(right.sides) and all(map(same, left.sides, right.sides))


def _reading(relation: Relation) -> bool:
    return (
        set(relation.operators) == {"="}
        and _is_name(relation.sides[0])
        and not isinstance(stated(relation, relation.sides[-1]), Relation)
    )


def _unknown(relation: Relation) -> str:
    return next(side.node[1] for side in relation.sides if _is_symbol(side))  # type: ignore[union-attr]


def _proportional(left: Relation, right: Relation) -> bool:
    """Whether left - right of both is the same up to a constant factor (positive for inequalities)."""
    trees: list[Node] = []
    for relation in (left, right):
        a, b = relation.sides
        if not (isinstance(a, Quantity) and isinstance(b, Quantity)):
            return False
        trees.append(("add", a.node, ("neg", b.node)))
    names = symbols(trees[0])
    if not names or names != symbols(trees[1]):
        return False
    ratios: list[Node] = []
    try:
        for number in range(4):
            at = point(names, number)
            ratios.append(("div", *(_placed(tree, at) for tree in trees)))
            value = numeric(ratios[-1], {})
            positive = left.operators[0] in ("=", "!=") or mpmath.re(value) > 0
            if value == 0 or not positive or not equal(ratios[0], ratios[-1]):
                return False
    except Undefined:
        return False
    return True


def _placed(node: Node, at: dict[str, Fraction]) -> Node:
    """The tree with numbers for its symbols."""
    if node[0] == "sym":
        return ("num", at[node[1]])
    return (node[0], *(_placed(p, at) if isinstance(p, tuple) else p for p in node[1:]))
