"""Where a Reasoning Gym scorer pays in full for a wrong answer: a further condition, by task.

Found by giving every task's scorer other items' answers, constants, and right answers with more behind them.
"""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from workers.verifiers.mathtext.normal import clean
from workers.verifiers.mathtext.parser import parse
from workers.verifiers.mathtext.rational import Undefined, exact
from workers.verifiers.mathtext.tree import TooLarge, Unreadable

Entry = Mapping[str, Any]

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_MOVES = re.compile(r"[UDLRudlr\s]+")
_STATES = re.compile(r"\s*[A-Za-z](\s*(→|->)\s*[A-Za-z])*\s*")
_SMALL_WORDS = frozenset({"is", "a", "an", "and", "the"})


def _puzzle24(answer: str, entry: Entry) -> bool:
    """Any four numbers are taken for the given ones, and 24.5 is cut down to 24."""
    numbers = sorted(int(number) for number in re.findall(r"\d+", answer))
    try:
        value = exact(parse(clean(answer)))
    except (Unreadable, Undefined, TooLarge):
        return False
    return numbers == sorted(entry["metadata"]["numbers"]) and value == 24


def _coin_flip(answer: str, entry: Entry) -> bool:
    """Differences up to 0.0001 pass, so that 0 is right for every small probability."""
    expected = Fraction(entry["answer"])
    return abs(Fraction(answer.replace(",", "")) - expected) <= expected / 1000


def _gsm_symbolic(answer: str, entry: Entry) -> bool:
    """The first number counts without its sign, whatever follows."""
    numbers = _NUMBER.findall(answer.replace(",", ""))
    return len(numbers) == 1 and float(numbers[0]) == float(entry["answer"])


def _game_of_life_halting(answer: str, entry: Entry) -> bool:
    """Any text at all is taken for any other."""
    return answer.strip().lower() == str(entry["answer"]).strip().lower()


def _sokoban(answer: str, entry: Entry) -> bool:
    """What is no move is passed over."""
    return bool(_MOVES.fullmatch(answer))


def _quantum_lock(answer: str, entry: Entry) -> bool:
    return bool(_STATES.fullmatch(answer))


def _knights_knaves(answer: str, entry: Entry) -> bool:
    """Words that are neither names nor roles are passed over, `not` among them."""
    metadata = entry["metadata"]
    roles = (str(metadata["knight_knave_terms"][role]).lower() for role in ("knight", "knave"))
    names = (str(name).lower() for name in metadata["names"])
    return set(re.findall(r"\w+", answer.lower())) <= {*roles, *names, *_SMALL_WORDS}


CORRECTED: Mapping[str, Callable[[str, Entry], bool]] = {
    "coin_flip": _coin_flip,
    "game_of_life_halting": _game_of_life_halting,
    "gsm_symbolic": _gsm_symbolic,
    "knights_knaves": _knights_knaves,
    "puzzle24": _puzzle24,
    "quantum_lock": _quantum_lock,
    "sokoban": _sokoban,
}
