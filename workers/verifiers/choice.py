"""Choice: one letter of the item's options. Anchored forms first, the last one wins, two letters are none.

Order: a box, an `<answer>` tag, "answer is X" / "Answer: X" in several languages, "I would pick X", then a
response that is nothing but a letter. An article ("A nice result") is never an answer: a letter must end the
phrase, or be followed by punctuation or by a word that explains.
"""

import re
from typing import ClassVar

from broker.messages import Json
from workers.verifiers.mathtext.extract import last_box, last_tag
from workers.verifiers.protocol import (
    Canary,
    Finding,
    Ungradable,
    Verifier,
    judged,
    no_answer,
    ungradable,
)

_WORDS = "answer|antwort|respuesta|réponse|reponse|risposta|resposta|答案|option|choice"
_COPULA = "is|would be|must be|seems to be|should be|ist|es|est|è|是"
_ANCHOR = re.compile(
    rf"(?:\b(?:{_WORDS})\b|答案)[\s*_]{{0,4}}(?:(?:{_COPULA})\b)?"
    r"[\s*_:：=]{0,8}(?:option\b|choice\b)?\s{0,4}",
    re.IGNORECASE,
)
_PICK = re.compile(
    r"\b(?:pick|choose|select|go with)[\s*_]{1,4}(?:option\s{1,4}|choice\s{1,4}|answer\s{1,4})?",
    re.IGNORECASE,
)
_LETTER = re.compile(
    r"(?:\\text\{|\\textbf\{|\\mathrm\{|[\s(\[\"'$*_{])*([A-Za-z])(?![A-Za-z0-9'’])", re.IGNORECASE
)
_WRAPPED = re.compile(
    r"[\s(\[\"'$*_{}.]*(?:\\(?:text|textbf|mathrm)\{)?\(?([A-Za-z])\)?[\s)\]\"'$*_{}.:]*"
)
_GOES_ON = re.compile(
    r"[\s)*_\"'\]}$]*(?:[.,;:!?—–\-)。，；：]|$|\n|because\b|since\b|as\b|for\b|which\b)"
)
_RIVAL = re.compile(r"[\s)*_\"'\]}$,]*(?:\b(?:or|and)\b|/|,)[\s(*_\"'\[$]*([A-Z])(?![A-Za-z0-9'’])")
WINDOW = 300
"""How much of a phrase after an anchor is read."""


class Choice(Verifier):
    """Multiple choice; the item's `options` say which letters there are (`A-D`, a list, or a number)."""

    version: ClassVar[str] = "1"
    canaries: ClassVar = (
        Canary("Answer: B. A nice result", "B", 1.0),
        Canary("ANSWER IS D. A is incorrect.", "D", 1.0),
        Canary("<answer>A or B or C</answer>", "A", 0.0),
        Canary("Answer: None of the above", "A", 0.0),
    )

    letters: str = "A-D"
    """Where the item does not say."""

    def check(self, target: str | None, item: Json) -> None:
        if target is not None and target.strip().upper() not in self._letters(item):
            raise Ungradable(f"target {target!r}: expected one of {self._letters(item)}")

    def grade(self, response: str, target: str | None, item: Json) -> Finding:
        letters = self._letters(item)
        answer = find(response.rpartition("</think>")[2], letters)
        if target is None:
            return ungradable("no target", answer, answer)
        if answer is None:
            return no_answer("no single letter in the agreed form")
        return judged(answer == target.strip().upper(), answer, answer)

    def stated(self, target: str, item: Json) -> str:
        return f"Answer: {target}"

    def _letters(self, item: Json) -> str:
        """The letters of an item's options, such as `ABCD`."""
        options = item.get("options", self.letters)
        if isinstance(options, int):
            return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:options]
        if isinstance(options, list | tuple | dict):
            return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: len(options)]
        text = str(options).upper()
        span = re.fullmatch(r"([A-Z])\s*-\s*([A-Z])", text)
        if span:
            return "".join(map(chr, range(ord(span.group(1)), ord(span.group(2)) + 1)))
        return "".join(sorted(set(re.findall(r"[A-Z]", text))))


def find(response: str, letters: str) -> str | None:
    """The one letter that a response settles on; None when there is none, or more than one."""
    if "boxed" in response or "fbox" in response:
        content = last_box(response)
        return None if content is None else _only(content[:WINDOW], letters)
    tagged = last_tag(response, "answer")
    if tagged is not None:
        return _only(tagged[:WINDOW], letters)
    phrases = sorted(
        (anchor.end() for pattern in (_ANCHOR, _PICK) for anchor in pattern.finditer(response)),
        reverse=True,
    )
    for at in phrases:
        settled, letter = _after(response[at : at + WINDOW], letters)
        if settled:
            return letter
    whole = _WRAPPED.fullmatch(response.strip()) if len(response) < WINDOW else None
    return _known(whole.group(1), letters) if whole else None


def _known(letter: str, letters: str) -> str | None:
    return letter.upper() if letter.upper() in letters else None


def _only(content: str, letters: str) -> str | None:
    """The letter of a box or tag: alone, or before its option's text (`E: a score`)."""
    wrapped = _WRAPPED.fullmatch(content)
    if wrapped:
        return _known(wrapped.group(1), letters)
    labelled = re.match(r"[\s(*]*(?:\\text\{)?\(?([A-Za-z])[)\s*}]*[:.)]\s*\S", content)
    if labelled and not _RIVAL.match(content, labelled.end(1)):
        return _known(labelled.group(1), letters)
    settled, letter = _after(content, letters)
    return letter if settled else None


def _after(phrase: str, letters: str) -> tuple[bool, str | None]:
    """(whether the phrase names a letter at its start, which one; None when it names several)."""
    found = _LETTER.match(phrase)
    if found is None or _known(found.group(1), letters) is None:
        return False, None
    rival = _RIVAL.match(phrase, found.end(1))
    if rival and rival.group(1) in letters and rival.group(1) != found.group(1).upper():
        return True, None
    if not _GOES_ON.match(phrase, found.end(1)):
        return False, None
    return True, _known(found.group(1), letters)
