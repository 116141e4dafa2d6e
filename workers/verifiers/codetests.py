"""The tests of a program, read and checked: what is asked inside the sandbox, what is expected outside.

Forms of a test, in a list: `{args, expected}` calls a function (`entry`); `{expr, expected}` evaluates an
expression; `{stdin, stdout}` runs the whole program; `{class, args, calls: [[method, args], ...], expected:
[...]}` calls an object's methods in turn; `"assert f(1) == 2"`. Each may carry an `id`.
"""

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from broker.messages import Json
from workers.verifiers.protocol import Ungradable

MAX_TESTS = 500
_DECIDING = (ast.Compare, ast.BoolOp, ast.Not)
_DECIDING_CALLS = frozenset({"isinstance", "all", "any", "bool", "isclose"})


@dataclass(frozen=True)
class Test:
    """One test."""

    id: str
    kind: Literal["ask", "program"]
    requests: tuple[dict[str, Any], ...]
    """What the program is asked, one after the other; for `program` a single `{stdin}`."""
    expected: tuple[object, ...]
    """One value for each request."""
    loose: bool = True
    """The expected values come from JSON, which knows no tuples."""


def read(item: Json, target: str | None, entry: str | None) -> tuple[Test, ...]:
    """The tests of an item: its `tests`, or the target as JSON. Raises Ungradable naming test and reason."""
    stated = item.get("tests")
    if stated is None and target is not None:
        try:
            stated = json.loads(target)
        except (ValueError, RecursionError) as error:
            raise Ungradable(
                "target: expected a JSON list of tests, or tests of the item"
            ) from error
    if not isinstance(stated, list) or not stated:
        raise Ungradable(f"tests {stated!r:.60}: expected a list that is not empty")
    if len(stated) > MAX_TESTS:
        raise Ungradable(f"{len(stated)} tests; the limit is {MAX_TESTS}")
    default = item.get("entry", entry)
    tests = tuple(_test(number, test, default) for number, test in enumerate(stated))
    ids = [test.id for test in tests]
    if len(set(ids)) != len(ids):
        raise Ungradable("tests: two have the same id")
    return tests


def _test(number: int, stated: object, entry: object) -> Test:
    try:
        if isinstance(stated, str):
            return _assertion(str(number), stated)
        if not isinstance(stated, Mapping):
            raise ValueError(f"expected a table, got {type(stated).__name__}")
        return _table(str(stated.get("id", number)), cast("Mapping[str, Any]", stated), entry)
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise Ungradable(f"test {number}: {error}") from error


def _table(name: str, stated: Mapping[str, Any], entry: object) -> Test:
    if "stdin" in stated or "stdout" in stated:
        given, expected = stated.get("stdin", ""), stated.get("stdout")
        if not isinstance(given, str) or not isinstance(expected, str):
            raise ValueError("stdin, stdout: expected text")
        return Test(name, "program", ({"stdin": given},), (expected,))
    if "expected" not in stated:
        raise ValueError("expected: missing")
    if "expr" in stated:
        return _expression(name, stated["expr"], stated["expected"])
    if "class" in stated:
        return _sequence(name, stated)
    function = stated.get("entry", entry)
    if not isinstance(function, str) or not function:
        raise ValueError("entry: expected the name of the function to call")
    request = _call("call", function, stated.get("args", []), stated.get("kwargs", {}))
    return Test(name, "ask", (request,), (stated["expected"],))


def _call(op: str, name: object, args: object, kwargs: object = None) -> dict[str, Any]:
    if not isinstance(name, str) or not name:
        raise ValueError(f"name {name!r:.40}: expected text")
    if not isinstance(args, list):
        raise ValueError(f"args of {name}: expected a list")
    if not isinstance(kwargs or {}, dict):
        raise ValueError(f"kwargs of {name}: expected a table")
    return {"op": op, "name": name, "args": args, "kwargs": kwargs or {}}


def _sequence(name: str, stated: Mapping[str, Any]) -> Test:
    calls, expected = stated.get("calls"), stated["expected"]
    if not isinstance(calls, list) or not isinstance(expected, list) or len(calls) != len(expected):
        raise ValueError("calls, expected: expected two lists of the same length")
    requests = [_call("new", stated["class"], stated.get("args", []))]
    for call in calls:
        if not isinstance(call, Sequence) or len(call) != 2:
            raise ValueError("calls: expected pairs of a method and its arguments")
        requests.append(_call("method", call[0], call[1]))
    return Test(name, "ask", tuple(requests), (None, *expected))


def _assertion(name: str, text: str) -> Test:
    body = ast.parse(text.strip()).body
    if len(body) != 1 or not isinstance(body[0], ast.Assert):
        raise ValueError(f"{text[:60]!r}: expected one assert statement")
    test = body[0].test
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _expression(name, ast.unparse(test.operand), False)
    return _expression(name, ast.unparse(test), True)


def _expression(name: str, text: object, expected: object) -> Test:
    """`a == literal` that should be true becomes: `a` should be that value.

    A comparison inside the sandbox can be won by an object that equals everything; it belongs outside.
    """
    if not isinstance(text, str):
        raise ValueError(f"expr {text!r:.40}: expected text")
    tree = ast.parse(text.strip(), mode="eval").body
    loose = True
    if expected is True and isinstance(tree, ast.Compare) and len(tree.ops) == 1:
        sides = _literal_side(tree)
        if sides is not None:
            tree, expected = sides
            loose = False
    # A list of comparisons is won by such an object too.
    if any(_decides(node) for node in ast.walk(tree)):
        raise ValueError(
            f"expr {text[:60]!r}: compares inside the sandbox; give the value that is expected instead"
        )
    request = {"op": "expr", "expr": ast.unparse(tree)}
    return Test(name, "ask", (request,), (expected,), loose)


def _literal_side(tree: ast.Compare) -> tuple[ast.expr, object] | None:
    """(expression, value) of `expression == value`, `value == expression` or `expression is None`."""
    if not isinstance(tree.ops[0], ast.Eq | ast.Is):
        return None
    for asked, known in ((tree.left, tree.comparators[0]), (tree.comparators[0], tree.left)):
        try:
            return asked, ast.literal_eval(known)
        except (ValueError, TypeError):
            continue
    return None


def _decides(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        function = node.func
        name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        return name in _DECIDING_CALLS
    return isinstance(node, _DECIDING)
