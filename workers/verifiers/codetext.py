"""The program within a response: its last fenced Python block."""

import hashlib
import re

_FENCE = re.compile(r"[ \t]{0,3}(`{3,}|~{3,})[ \t]*([^\s`]*)[^`]*")
"""Its second group is the language; what may follow it (a title, a file's name) says nothing."""
# Other characters that end a line for str.splitlines may stand within a program's strings.
_LINE_END = re.compile(r"\r?\n")
_PYTHON = frozenset({"python", "py", "python3"})


def last_block(response: str) -> tuple[str | None, str]:
    """(source, ""), or (None, why there is none).

    The last block that is marked as Python; without one, the last that is not marked at all. A block that is
    not closed was cut off: then there is no answer, whatever stood before.
    """
    found: dict[bool, str] = {}
    opened: tuple[str, str] | None = None
    lines: list[str] = []
    for line in _LINE_END.split(response):
        fence = _FENCE.fullmatch(line.rstrip())
        if opened is None:
            if fence:
                opened, lines = (fence.group(1), fence.group(2).lower()), []
        elif fence and not fence.group(2) and fence.group(1).startswith(opened[0]):
            if opened[1] in _PYTHON or not opened[1]:
                found[bool(opened[1])] = "\n".join(lines)
            opened = None
        else:
            lines.append(line)
    if opened is not None and (opened[1] in _PYTHON or not opened[1]):
        return None, "the last block is not closed"
    if not found:
        return None, "no fenced Python block"
    return found.get(True, found.get(False)), ""


def key(source: str) -> str:
    """Equal for programs that differ in empty lines and space at line ends only."""
    lines = [line.rstrip() for line in _LINE_END.split(source) if line.strip()]
    return hashlib.sha256("\n".join(lines).encode("utf-8", "replace")).hexdigest()[:32]
