"""Units and number words behind a number: cut off at a word's edge, never out of a command.

Two units must be the same after spelling; one missing is allowed. Nothing is converted: 1 m is not 100 cm.
"""

import re

from workers.verifiers.mathtext.vocabulary import (
    EXPRESSION_WORDS,
    MULTIPLIERS,
    NOT_UNITS,
    SHORT_WORDS,
    UNIT_ALIASES,
)

_CANONICAL = {alias: name for name, aliases in UNIT_ALIASES.items() for alias in (name, *aliases)}
_GLUED = "cm|mm|km|kg|mg|ml|mph|ft|lbs?|oz|hrs?|mins?|sec"
"""Units that may follow a digit without a space; single letters could be symbols."""

_IN_TEXT = re.compile(
    r"(?P<number>.*?[^\s\\])\s*\\(?:text|mathrm|operatorname)\{\s*(?P<unit>[^{}]*?)\s*\}\s*(?P<power>\^\{?[23]\}?)?"
)
_PLAIN = re.compile(
    r"(?P<number>.*[\d)}%!])(?:\s+(?P<unit>[A-Za-z]{2,}(?:[ -][A-Za-z]+){0,2})"
    rf"|\s?(?P<glued>{_GLUED}))(?P<power>\^\{{?[23]\}}?)?"
)
_DEGREES = re.compile(r"(?P<number>.*[^\s])\s*\^\s*\{?\s*\\circ\s*\}?")
_SUFFIX_CURRENCY = re.compile(r"(?P<number>.*\d)\s*\\(?P<unit>usd|eur|gbp)\s*")


def is_expression(words: str) -> bool:
    """Whether a run of letters is mathematics (`pi`, `xy`) rather than a word."""
    return all(len(word) == 1 or word in EXPRESSION_WORDS for word in words.split()) or (
        len(words) == 2 and words.islower() and words not in SHORT_WORDS
    )


def split_off(text: str) -> tuple[str, str]:
    """(number, canonical unit); the unit is empty when there is none. Number words multiply."""
    if degrees := _DEGREES.fullmatch(text):
        return degrees.group("number"), "degree"
    if currency := _SUFFIX_CURRENCY.fullmatch(text):
        return currency.group("number"), currency.group("unit")
    found = _IN_TEXT.fullmatch(text)
    if found is None or found.group("number").endswith(("^", "_", "{")):
        found = _PLAIN.fullmatch(text)
    if found is None:
        return text, ""
    fields = found.groupdict()
    words = (fields.get("unit") or fields.get("glued") or "").lower().rstrip(".")
    return _with_words(found.group("number"), words.split(), fields.get("power") or "", text)


def _with_words(number: str, words: list[str], power: str, whole: str) -> tuple[str, str]:
    while words and words[0] in MULTIPLIERS:
        number = f"({number})*{MULTIPLIERS[words.pop(0)]}"
    if words and words[0] in ("percent", "%"):
        number = f"({number})/100"
        words.pop(0)
    if any(word in NOT_UNITS or word in EXPRESSION_WORDS for word in words):
        return whole, ""
    return number, canonical(" ".join(words), power.strip("^{}"))


def canonical(words: str, power: str = "") -> str:
    """One spelling for a unit: `square centimeters` and `cm^2` are the same."""
    for name, exponent in (("square ", "2"), ("sq ", "2"), ("cubic ", "3")):
        if words.startswith(name):
            words, power = words.removeprefix(name), exponent
    if words in _CANONICAL:
        unit = _CANONICAL[words]
    elif words.removesuffix("s") in _CANONICAL and len(words) > 2:
        unit = _CANONICAL[words.removesuffix("s")]
    else:
        unit = words.removesuffix("s")
    return f"{unit}^{power}" if unit and power else unit


def compatible(left: str, right: str) -> bool:
    """The policy for units: equal, or one missing."""
    return not left or not right or left == right
