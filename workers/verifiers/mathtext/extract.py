"""Finds the answer in a response. One rule, the same in training and evaluation.

- Only what follows the last `</think>` is read; a thought that never closes holds no answer.
- The last box counts (`\\boxed` or `\\fbox`, braces counted). Boxes joined by nothing but commas, "and" or
  "or" are one list, so that listing guesses does not pay. A last box that never closes was cut: no answer.
- Then the configured fallbacks, in their order: `hash` (`#### x`), `final` ("the answer is x",
  "Final Answer: x"), `whole` (the response is nothing but an answer).
"""

import re
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

Fallback = Literal["hash", "final", "whole"]
WHOLE_CHARS = 200
BOX_CHARS = 20_000
"""A box that has not closed by then never closes."""
LINE_CHARS = 300
MAX_BOXES = 50
JOINER_CHARS = 40


class Found(NamedTuple):
    text: str | None
    """The answer as written; None when there is none."""
    how: str
    """box, hash, final, whole; or why there is none."""


_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*")
_JOINER = re.compile(r"[\s,;$.*]*(?:\\?(?:text\{\s*)?(?:and|or)\b\s*\}?)?[\s,;$*]*", re.IGNORECASE)
_HASH = re.compile(r"####[ \t]*([^\n]*)")
_FINAL = re.compile(r"\banswer\b[\s*_\"]{0,4}(?:is|are|:|=)[\s*_:=]{0,6}", re.IGNORECASE)
_FINAL_HEADING = re.compile(
    r"^[ \t*#_>]{0,10}final answer[ \t*:_]{0,10}\n", re.IGNORECASE | re.MULTILINE
)
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BARE_ARGUMENT = re.compile(r"\\[a-zA-Z]+|-?[0-9.,]*[0-9]|\S")
_PROSE_AFTER = re.compile(
    r"[,;]?\s+(?:because|since|which|where|when|as|so|after|from)\b.*", re.IGNORECASE | re.DOTALL
)


def find(response: str, fallbacks: Sequence[Fallback], thinks: bool = True) -> Found:
    """The answer in a response, or why there is none."""
    if thinks and "think>" in response:
        before, closed, visible = response.rpartition("</think>")
        response = visible if closed else response
        if "<think>" in response:
            return Found(None, "thinking never closed")
        del before
    found = _boxed(response)
    if found is not None:
        return found
    for name in fallbacks:
        text = _FALLBACKS[name](response)
        if text is not None:
            return Found(text, name)
    return Found(None, "no answer in the agreed form")


def _boxed(response: str) -> Found | None:
    if "boxed" not in response and "fbox" not in response:
        return None
    starts = list(_BOX.finditer(response))
    if not starts:
        return None
    contents: list[str] = []
    begin_of_next = len(response)
    for start in reversed(starts):
        content, end = box_content(response, start.end())
        if content is None:
            if contents:
                break
            return Found(None, "truncated: the last box never closes")
        if end > begin_of_next and contents:
            continue  # a box within the box that was read already
        joined = begin_of_next - end <= JOINER_CHARS and len(contents) < MAX_BOXES
        if contents and not (joined and _JOINER.fullmatch(response, end, begin_of_next)):
            break
        contents.append(content)
        begin_of_next = start.start()
    distinct = list(dict.fromkeys(c.strip() for c in reversed(contents)))
    if not any(distinct):
        return Found(None, "empty box")
    return Found(distinct[0] if len(distinct) == 1 else " , ".join(distinct), "box")


def box_content(text: str, at: int) -> tuple[str | None, int]:
    """What a box holds whose argument starts at `at`, and where it ends; None when it never closes."""
    if at >= len(text):
        return None, at
    if text[at] != "{":
        token = _BARE_ARGUMENT.match(text, at)
        return (token.group(), token.end()) if token else (None, at)
    depth = 0
    for brace in _BRACE.finditer(text, at, at + BOX_CHARS):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return text[at + 1 : brace.start()], brace.end()
    return None, len(text)


def last_tag(response: str, tag: str) -> str | None:
    """What the last closed `<tag>...</tag>` holds, whatever its case."""
    marks = list(re.finditer(rf"<(/?){tag}>", response, re.IGNORECASE))
    for opening, closing in zip(marks[-2::-1], marks[::-1], strict=False):
        if closing.group(1) and not opening.group(1):
            return response[opening.end() : closing.start()]
    return None


def last_box(response: str) -> str | None:
    """What the last box holds; None when there is none, or when it never closes."""
    starts = list(_BOX.finditer(response))
    return box_content(response, starts[-1].end())[0] if starts else None


def _hash(response: str) -> str | None:
    found = _HASH.findall(response)
    return found[-1].strip() or None if found else None


def _final(response: str) -> str | None:
    if "nswer" not in response and "NSWER" not in response:
        return None
    anchors = [*_FINAL.finditer(response), *_FINAL_HEADING.finditer(response)]
    if not anchors:
        return None
    tail = response[max(anchor.end() for anchor in anchors) :].lstrip()
    line = tail.split("\n", 1)[0][:LINE_CHARS].replace("**", "").replace("`", "")
    sentence = re.split(r"[.!](?=\s|$)", line, maxsplit=1)[0]
    return _PROSE_AFTER.sub("", sentence).strip(" *_:") or None


def _whole(response: str) -> str | None:
    text = response.strip().removesuffix(".").replace("**", "")
    return text if text and len(text) <= WHOLE_CHARS and "\n" not in text else None


_FALLBACKS: dict[str, Callable[[str], str | None]] = {
    "hash": _hash,
    "final": _final,
    "whole": _whole,
}
