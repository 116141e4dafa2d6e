"""The last resort: math-verify, for what this package does not read. Guarded, and confirmed both ways round.

Imports sympy, so only a grader process calls it.
"""

import importlib
import logging
import re
from types import ModuleType

_HUGE = re.compile(r"\d{9,}|!|\\binom|\\prod")
_POWER = re.compile(r"\^\s*(?:\{?\s*\d{4,}|\{[^{}]*\^|\w\s*\^)")
MAX_CHARS = 400
MAX_BRACES = 20


def guard(text: str) -> str:
    """Why a text must not reach sympy; empty when it may."""
    if len(text) > MAX_CHARS:
        return f"{len(text)} characters for symbolic work; the limit is {MAX_CHARS}"
    depth = deepest = 0
    for char in text:
        depth += (char in "({[") - (char in ")}]")
        deepest = max(deepest, depth)
    if deepest > MAX_BRACES:
        return f"nested {deepest} deep"
    if _HUGE.search(text) or _POWER.search(text):
        return "powers, factorials or numbers too large for symbolic work"
    return ""


def readable(text: str) -> bool:
    """Whether math-verify makes one expression of a text."""
    return not guard(text) and len(_parse(text)) > 0


def same(target: str, answer: str) -> tuple[bool, str]:
    """Whether math-verify finds two texts equal, whichever is called the gold; and why not, if guarded."""
    reason = guard(answer)
    if reason:
        return False, f"too large: {reason}"
    library = _library()
    if library is None:
        return False, "unknown form, and math-verify is not installed"
    left, right = _parse(target), _parse(answer)
    if not left or not right:
        return False, "unreadable"
    try:
        both = all(
            library.verify(a, b, timeout_seconds=None, raise_on_error=True)
            for a, b in ((left, right), (right, left))
        )
    except (ArithmeticError, AttributeError, RecursionError, TypeError, ValueError) as error:
        return False, f"not comparable: {type(error).__name__}"
    return both, ""


def _parse(text: str) -> list[object]:
    library = _library()
    if library is None:
        return []
    found = library.parse(
        f"${text}$",
        extraction_config=[library.LatexExtractionConfig()],
        fallback_mode="no_fallback",
        parsing_timeout=None,
    )
    return [value for value in found if not isinstance(value, str)]


def _library() -> ModuleType | None:
    for noisy in ("math_verify", "latex2sympy2_extended"):
        # They warn on every call that their timeouts are off.
        logging.getLogger(noisy).setLevel(logging.ERROR)
    try:
        return importlib.import_module("math_verify")
    except ImportError:
        return None
