"""Text to tokens: numbers, operators, and words (a letter, a function or a command by name)."""

import re

from workers.verifiers.mathtext.tree import MAX_DIGITS, TooLarge, Unreadable
from workers.verifiers.mathtext.vocabulary import PARSED_WORDS

_TOKEN = re.compile(
    r"\s*(?:(?P<num>\d+(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+\.?\d*(?:[eE][+-]?\d+(?![a-zA-Z]))?|\.\d+)"
    r"|\\(?P<command>[a-zA-Z]+|[%{}|])|(?P<word>[a-zA-Z]+)|(?P<op>\*\*|[-+*/^_!()\[\]{}|%']))"
)


def tokens(text: str) -> list[tuple[str, str]]:
    """(kind, text) with kinds num, op, word (a letter, function or command name)."""
    found: list[tuple[str, str]] = []
    at = 0
    text = text.rstrip()
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise Unreadable(f"cannot read {text[at : at + 20]!r}")
        kind, value = str(token.lastgroup), token.group(str(token.lastgroup))
        if kind == "num" and sum(c.isdigit() for c in value) > MAX_DIGITS:
            raise TooLarge(f"a number of {len(value)} characters")
        if kind == "word" and value not in PARSED_WORDS:
            found += _letters(value)
        elif kind == "command" and value in "%{}|":
            found.append(("op", "%" if value == "%" else "\\" + value))
        else:
            found.append(("word" if kind == "command" else kind, value))
        at = token.end()
    return found


def _letters(word: str) -> list[tuple[str, str]]:
    """A run of letters: functions and constants are split off, the rest are single symbols."""
    name = re.match(r"(?:arc)?(?:sin|cos|tan)|sqrt|log|ln|exp|pi", word)
    if name and len(word) - name.end() <= 1:
        return [("word", name.group()), *(("word", c) for c in word[name.end() :])]
    if len(word) > 3:
        raise Unreadable(f"word {word!r}")
    return [("word", letter) for letter in word]
