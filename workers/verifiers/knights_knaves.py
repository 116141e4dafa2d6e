"""Knights and Knaves: one role for each person, all of them and nobody else, equal to the solution.

Read after the last answer marker only, so that a hypothesis in the reasoning does not count. `not a knight`
is a knave; the item may name the two roles otherwise (`options.roles`, the truthful one first).
"""

import json
import re
from collections.abc import Mapping, Sequence
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

_MARKER = re.compile(
    r"\b(?:final answer|answer|conclusion|solution)\b[\s*_]*(?:is|are)?[\s*_]*:?", re.IGNORECASE
)
_MARKUP = re.compile(r"\*\*|__|`|\\text\{|[{}$]")
TRUTHFUL, LYING = "knight", "knave"
_BETWEEN = r"(?:\s*[,&]\s*(?:and\s+)?|\s+and\s+)"
ANSWER_CHARS = 2_000


class KnightsKnaves(Verifier):
    """Target: a JSON object from name to role, `{"A": "knight", "B": "knave"}`.

    Or a list, in the order of the item's `names`, of roles or of whether each is a knight.
    """

    version: ClassVar[str] = "1"
    canaries: ClassVar = (
        Canary("B is not a knight, A is a knight", '{"A":"knight","B":"knave"}', 1.0),
        Canary("A: knight", '{"A":"knight","B":"knave"}', 0.0),
    )

    def check(self, target: str | None, item: Json) -> None:
        if target is not None:
            _solution(target, item)

    def grade(self, response: str, target: str | None, item: Json) -> Finding:
        roles = _roles(item)
        solution = None if target is None else _solution(target, item)
        text = answer_text(response.rpartition("</think>")[2])
        if text is None:
            return no_answer("no answer in the agreed form")
        found, problem = assignments(text, roles)
        if not found and not problem:
            return no_answer("no person is given a role")
        key = ", ".join(f"{name}: {role}" for name, role in sorted(found.items()))
        if solution is None:
            return ungradable(problem or "no target", key or None, None if problem else key)
        if problem:
            return judged(False, key or None, None, problem)
        missing = sorted(solution.keys() - found.keys())
        extra = sorted(found.keys() - solution.keys())
        detail = f"missing {missing}" if missing else f"not asked for {extra}" if extra else ""
        return judged(found == solution, key, key, detail)

    def stated(self, target: str, item: Json) -> str:
        solution = _solution(target, item)
        return ", ".join(f"{name} is a {role}" for name, role in solution.items())


def _roles(item: Json) -> tuple[str, str]:
    named = item.get("roles")
    if isinstance(named, Sequence) and not isinstance(named, str) and len(named) == 2:
        return str(named[0]).lower(), str(named[1]).lower()
    return TRUTHFUL, LYING


def _solution(target: str, item: Json) -> dict[str, str]:
    """Name (lower case) to role."""
    roles = _roles(item)
    try:
        table = _table(json.loads(target), item)
    except ValueError as error:
        raise Ungradable(f"target {target[:80]!r}: expected a JSON object of roles") from error
    if not isinstance(table, Mapping) or not table:
        raise Ungradable(f"target {target[:80]!r}: expected a JSON object of roles")
    solution = {str(name).lower(): str(role).lower() for name, role in table.items()}
    if len(solution) != len(table):
        raise Ungradable(f"target {target[:80]!r}: names a person twice")
    wrong = [role for role in solution.values() if role not in (*roles, TRUTHFUL, LYING)]
    if wrong:
        raise Ungradable(f"target: role {wrong[0]!r}: expected one of {roles}")
    plain = {TRUTHFUL: roles[0], LYING: roles[1]}
    return {name: plain.get(role, role) for name, role in solution.items()}


def _table(stated: object, item: Json) -> object:
    """A list of roles with its names; anything else as it is."""
    if not isinstance(stated, list):
        return stated
    names = item.get("names")
    if not isinstance(names, list) or len(names) != len(stated):
        raise Ungradable(
            f"names {names!r:.60}: expected a list of {len(stated)}, one for each role"
        )
    if not all(isinstance(name, str) for name in names) or len({*map(str.lower, names)}) < len(
        names
    ):
        raise Ungradable(f"names {names!r:.60}: expected texts that differ")
    words = {True: TRUTHFUL, False: LYING}
    return dict(
        zip(names, (words.get(r, r) if isinstance(r, bool) else r for r in stated), strict=True)
    )


def answer_text(response: str) -> str | None:
    """What follows the last marker, or the whole of a short response."""
    tagged = last_tag(response, "answer")
    if tagged is not None:
        return tagged[:ANSWER_CHARS]
    if "boxed" in response or "fbox" in response:
        boxed = last_box(response)
        return None if boxed is None else boxed[:ANSWER_CHARS]
    markers = list(_MARKER.finditer(response))
    text = response[markers[-1].end() :] if markers else response
    return text[:ANSWER_CHARS] if markers or len(text) < 400 else None


def assignments(text: str, roles: tuple[str, str]) -> tuple[dict[str, str], str]:
    """Roles by lower-case name, and what is contradictory."""
    text = _MARKUP.sub(" ", text)
    either = "|".join(re.escape(role) for role in roles)
    pattern = re.compile(
        rf"\b(?P<names>[A-Za-z][\w'-]*(?:{_BETWEEN}[A-Za-z][\w'-]*)*)\s*"
        rf"(?:is|are|was|must be|:|=|->|→)\s*(?:both\s+|all\s+)?(?P<not>not\s+)?"
        rf"(?:an?\s+|the\s+)?(?P<role>{either})s?\b",
        re.IGNORECASE,
    )
    found: dict[str, str] = {}
    for match in pattern.finditer(text):
        role = match.group("role").lower()
        if match.group("not"):
            role = roles[1] if role == roles[0] else roles[0]
        for name in re.split(r"\s*(?:,|&|\band\b)\s*", match.group("names")):
            name = name.strip().lower()
            if not name or name in ("so", "then", "therefore", "thus", "that"):
                continue
            if found.get(name, role) != role:
                return found, f"two roles for {name}"
            found[name] = role
    return found, ""
