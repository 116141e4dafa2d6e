"""Cutting an answer where it has parts: only outside of all brackets."""

import re
from collections.abc import Sequence

_AND = re.compile(r",?\s*(?:\\text\{\s*(?:and|or|,)\s*\}|(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z]))\s*")
_RELATIONS = {
    r"\le": "<=", r"\ge": ">=", r"\ne": "!=", "<=": "<=", ">=": ">=", "!=": "!=", "<": "<",
    ">": ">", "=": "=", r"\in": "in", "==": "=",
}  # fmt: skip
_PAIRS = {"(": ")", "[": "]", "{": "}", r"\{": r"\}", r"\langle": r"\rangle"}
_MARK = re.compile(r"\\\\|\\[a-zA-Z]+|\\.|[<>!=]=|.", re.DOTALL)


def _marks(text: str) -> list[tuple[int, str, int]]:
    """(position, token, depth before it) of every token."""
    found: list[tuple[int, str, int]] = []
    depth = 0
    for token in _MARK.finditer(text):
        mark = token.group()
        if mark in (")", "]", "}", r"\}", r"\rangle"):
            depth -= 1
        found.append((token.start(), mark, depth))
        if mark in _PAIRS:
            depth += 1
    return found


def at_top(text: str, separators: Sequence[str]) -> list[str]:
    """The parts between separators that stand outside of all brackets."""
    if not any(separator in text for separator in separators):
        return [text]
    parts: list[str] = []
    begin = 0
    for position, mark, depth in _marks(text):
        if depth == 0 and mark in separators:
            parts.append(text[begin:position])
            begin = position + len(mark)
    return [*parts, text[begin:]]


_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")


def at_commas(text: str) -> list[str]:
    """Parts of a list: at commas, semicolons, "and", "or"; a thousands comma is no separator."""
    if "and" in text or "or" in text:
        text = _AND.sub(" , ", text)
    if "," not in text and ";" not in text:
        return [text]
    kept = _THOUSANDS.sub(lambda number: number.group().replace(",", "\0"), text)
    parts = [part.replace("\0", ",").strip() for part in at_top(kept, (",", ";"))]
    filled = [part for part in parts if part]
    return filled if len(filled) == len(parts) or len(filled) > 1 else [text]


def at_relations(text: str) -> tuple[list[str], list[str]]:
    """Sides and relation signs outside of all brackets."""
    sides: list[str] = []
    operators: list[str] = []
    begin = 0
    for position, mark, depth in _marks(text):
        if depth == 0 and mark in _RELATIONS:
            sides.append(text[begin:position])
            operators.append(_RELATIONS[mark])
            begin = position + len(mark)
    return [*sides, text[begin:]], operators


def plus_minus(text: str) -> list[str]:
    """The readings of `\\pm` and `\\mp`: both signs, taken together."""
    if r"\pm" not in text and r"\mp" not in text:
        return [text]
    upper = text.replace(r"\pm", "+").replace(r"\mp", "-")
    lower = text.replace(r"\pm", "-").replace(r"\mp", "+")
    return [upper, lower]


def outer_brackets(text: str) -> tuple[str, str, str] | None:
    """(opening, inside, closing) when one pair of brackets encloses everything; intervals may mix them."""
    marks = _marks(text)
    opening = marks[0][1]
    closing = marks[-1][1]
    if opening not in _PAIRS or opening == "{" or closing == "}":
        return None
    allowed = (")", "]") if opening in "([" else (_PAIRS[opening],)
    if closing not in allowed or marks[-1][2] != 0:
        return None
    if any(depth == 0 for _, _, depth in marks[1:-1]):
        return None
    return opening, text[len(opening) : marks[-1][0]], closing
