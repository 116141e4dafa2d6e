"""Knights and Knaves: who tells the truth? Every puzzle has exactly one solution, which is checked.

A puzzle is a choice of statements and an ordered choice of names. The statements of each size are drawn
once, all different and all with one solution; so no two numbers give the same prompt.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import perm
from random import Random

from workers.dispatcher.items import Problem

NAMES = (
    "Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gwen", "Hugo", "Iris", "Jack", "Kira", "Liam",
    "Mia", "Noah", "Olga", "Paul", "Quinn", "Rosa", "Sam", "Tess", "Ulla", "Vera", "Will", "Xena",
    "Yan", "Zoe",
)  # fmt: skip
VARIANTS = 200
"""Different sets of statements for each number of people."""
TRIES = 50_000
RULES = "On an island, knights always tell the truth and knaves always lie. Everybody is one of the two."
ASK = "Who is a knight and who is a knave? Answer like this: "


@dataclass(frozen=True)
class Statement:
    """What a person says: words with `{0}`, `{1}`, ... for names, and when it is true."""

    words: str
    holds: Callable[[Sequence[bool]], bool]
    """Of a world: whether each person is a knight."""


class Knights:
    """Puzzles with the numbers of people named, in turn. Target: `{"Ada": "knight", ...}`."""

    VERSION = "1"

    def __init__(self, *, people: int | Sequence[int] = (2, 3)) -> None:
        sizes = (people,) if isinstance(people, int) else tuple(people)
        # A number named twice would give its puzzles twice.
        different = len(set(sizes)) == len(sizes) > 0
        if not different or not all(isinstance(size, int) and 2 <= size <= 8 for size in sizes):
            raise ValueError(f"people = {people!r}: expected different numbers within 2..8")
        self._sizes = sizes
        self.size = len(sizes) * min(len(puzzles(size)) * perm(len(NAMES), size) for size in sizes)

    def problem(self, number: int) -> Problem:
        number, which = divmod(number, len(self._sizes))
        size = self._sizes[which]
        known = puzzles(size)
        number, variant = divmod(number, len(known))
        statements, world = known[variant]
        names = _names(number, size)
        said = (
            f'{name} says: "{statement.words.format(*names)}."'
            for name, statement in zip(names, statements, strict=True)
        )
        roles = ["knight" if truthful else "knave" for truthful in world]
        form = (
            ", ".join(f"{name} is a knight" for name in names[:-1]) + f", {names[-1]} is a knave."
        )
        prompt = f"{RULES} You meet {_listed(names)}. {' '.join(said)} {ASK}{form}"
        solution = ", ".join(f"{n} is a {r}" for n, r in zip(names, roles, strict=True)) + "."
        target = json.dumps(dict(zip(names, roles, strict=True)))
        return Problem(prompt, target, solution, difficulty=float(size))


@lru_cache(maxsize=8)
def puzzles(size: int) -> tuple[tuple[tuple[Statement, ...], tuple[bool, ...]], ...]:
    """(a statement of each person, the one world that fits them), all different."""
    rng = Random(f"knights and knaves of {size}")
    choices = [tuple(_statements(speaker, size)) for speaker in range(size)]
    found: dict[tuple[str, ...], tuple[tuple[Statement, ...], tuple[bool, ...]]] = {}
    for _ in range(TRIES):
        said = tuple(rng.choice(of) for of in choices)
        key = tuple(statement.words for statement in said)
        fitting = () if key in found else solutions(said)
        if len(fitting) == 1:
            found[key] = (said, fitting[0])
        if len(found) == VARIANTS:
            break
    return tuple(found.values())


def solutions(said: Sequence[Statement]) -> tuple[tuple[bool, ...], ...]:
    """The worlds in which exactly the knights' statements are true."""
    size = len(said)
    worlds = (tuple(bool(n >> i & 1) for i in range(size)) for n in range(2**size))
    return tuple(
        world
        for world in worlds
        if all(statement.holds(world) == world[i] for i, statement in enumerate(said))
    )


def _statements(speaker: int, size: int) -> Iterator[Statement]:
    others = [i for i in range(size) if i != speaker]
    for i in others:
        yield Statement(f"{{{i}}} is a knight", lambda w, i=i: w[i])
        yield Statement(f"{{{i}}} is a knave", lambda w, i=i: not w[i])
        yield Statement(f"{{{i}}} and I are of the same kind", lambda w, i=i: w[i] == w[speaker])
        yield Statement(f"{{{i}}} and I differ", lambda w, i=i: w[i] != w[speaker])
        yield Statement(
            f"I am a knave or {{{i}}} is a knight", lambda w, i=i: not w[speaker] or w[i]
        )
        yield Statement(
            f"I am a knight and {{{i}}} is a knave", lambda w, i=i: w[speaker] and not w[i]
        )
    for i, j in combinations(others, 2):
        yield Statement(
            f"{{{i}}} and {{{j}}} are both knaves", lambda w, i=i, j=j: not (w[i] or w[j])
        )
        yield Statement(f"{{{i}}} or {{{j}}} is a knight", lambda w, i=i, j=j: w[i] or w[j])
        yield Statement(
            f"if {{{i}}} is a knight, so is {{{j}}}", lambda w, i=i, j=j: not w[i] or w[j]
        )
    for count in range(1, size):
        yield Statement(f"exactly {count} of us are knights", lambda w, c=count: sum(w) == c)
        yield Statement(f"at most {count} of us are knights", lambda w, c=count: sum(w) <= c)


def _names(number: int, size: int) -> tuple[str, ...]:
    """The ordered choice with that number."""
    left = list(NAMES)
    chosen: list[str] = []
    for _ in range(size):
        number, place = divmod(number, len(left))
        chosen.append(left.pop(place))
    return tuple(chosen)


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
