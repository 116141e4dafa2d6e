"""The program's side of the sandbox: runs the answer, hands it one input at a time, tells what came of it.

Its compiled code is handed to the interpreter within the sandbox; nothing else imports it. It shares its
process with the answer, which may change all of it: the checker outside believes nothing of what is said
here but the fact that it was said. Results are plain data by exact type, so that no object of the answer's
is ever compared with anything. It imports nothing that is slow to import.
"""

from __future__ import annotations

import marshal
import os
import resource
import sys
from _json import encode_basestring_ascii as quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

REQUESTS, REPLIES = (int(fd) for fd in sys.argv[1:3])
MAX_VALUES = 500_000
"""In one result: shared parts of a structure are written out each time they occur."""


class Unfit(Exception):
    """A result that is no plain data."""


def take() -> dict[str, Any] | None:
    """The next request; None at the end."""
    head = exactly(4)
    body = exactly(int.from_bytes(head, "little")) if head else b""
    return marshal.loads(body) if body else None


def exactly(size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        got = os.read(REQUESTS, size - len(parts))
        if not got:
            return b""
        parts += got
    return bytes(parts)


def tell(kind: str, token: str, name: str, text: str) -> None:
    """One line of JSON; text is JSON already."""
    line = f'{{"at":{quoted(kind)},"token":{quoted(token)},{quoted(name)}:{text}}}\n'.encode()
    while line:
        line = line[os.write(REPLIES, line) :]


def reason(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException as second:  # the answer's own class may do anything
        text = type(second).__name__
    return quoted(f"{type(error).__name__}: {text}"[:300])


class Writer:
    """JSON of plain data, each value with its exact type."""

    def __init__(self) -> None:
        self.left = MAX_VALUES

    def write(self, value: Any) -> str:
        self.left -= 1
        if self.left < 0:
            raise Unfit(f"more than {MAX_VALUES} values")
        kind = type(value)
        if value is None or kind is bool:
            return {None: "null", True: "true", False: "false"}[value]
        if kind is int:
            return f'{{"i":"{value:x}"}}'
        if kind is float:
            return f'{{"f":"{value.hex()}"}}'
        if kind is str:
            return quoted(value)
        if kind is bytes:
            return f'{{"b":"{value.hex()}"}}'
        if kind is complex:
            return f'{{"c":["{value.real.hex()}","{value.imag.hex()}"]}}'
        if kind is dict:
            return f'{{"d":[{self.each(part for pair in value.items() for part in pair)}]}}'
        letter = {list: "l", tuple: "t", set: "s", frozenset: "z"}.get(kind)
        if letter is None:
            raise Unfit(f"a result holds {kind.__name__}, which is no plain data")
        return f'{{"{letter}":[{self.each(value)}]}}'

    def each(self, values: Any) -> str:
        return ",".join(self.write(value) for value in values)


class Answer:
    """The loaded program, and the object whose methods are being called."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.object: Any = None

    def do(self, request: dict[str, Any]) -> Any:
        arguments, named = request.get("args", ()), request.get("kwargs", {})
        match request["op"]:
            case "expr":
                # Within the sandbox, which is what it is for.
                return eval(request["expr"], vars(self.module))  # noqa: S307
            case "call":
                return self.named(request["name"])(*arguments, **named)
            case "new":
                self.object = self.named(request["name"])(*arguments, **named)
                return None
            case _:
                return getattr(self.object, request["name"])(*arguments, **named)

    def named(self, name: str) -> Any:
        """A function, a class, or `Class.method` of a fresh object."""
        first, _, rest = name.partition(".")
        if first not in vars(self.module):
            raise NameError(f"the answer defines no {first}")
        found = vars(self.module)[first]
        return getattr(found() if isinstance(found, type) else found, rest) if rest else found


def confine(first: dict[str, Any]) -> None:
    limits = {
        resource.RLIMIT_AS: first["memory_bytes"],
        resource.RLIMIT_CPU: first["cpu_seconds"],
        resource.RLIMIT_FSIZE: first["disk_bytes"],
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
    }
    for which, limit in limits.items():
        resource.setrlimit(which, (limit, limit))


def main() -> None:
    first = take()
    if first is None:
        return
    confine(first)
    tell("hello", first["token"], "problem", '""')
    alone = first["mode"] == "program"
    try:
        code = compile(first["source"], "answer.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        tell("compiled", first["token"], "problem", reason(error))
        return
    tell("compiled", first["token"], "problem", '""')
    module = type(sys)("__main__" if alone else "answer")
    sys.modules[module.__name__] = module
    if alone:
        os.close(REQUESTS)
        os.close(REPLIES)
        exec(code, vars(module))  # noqa: S102
        return
    try:
        exec(code, vars(module))  # noqa: S102
    except BaseException as error:
        tell("loaded", first["token"], "problem", reason(error))
        return
    tell("loaded", first["token"], "problem", '""')
    answer = Answer(module)
    while (request := take()) is not None:
        respond(answer, request)


def respond(answer: Answer, request: dict[str, Any]) -> None:
    try:
        text = Writer().write(answer.do(request))
    except BaseException as error:
        tell("result", request["token"], "problem", reason(error))
    else:
        tell("result", request["token"], "value", text)


if __name__ == "__main__":
    main()
