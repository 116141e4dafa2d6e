"""One row of a dataset, from any of the usual spellings. A bad one is a ValueError with the reason.

Read are verl's columns (`prompt`, `reward_model.ground_truth`, `extra_info`, `data_source`, `ability`), the
tutorial's (`ground_truth`, `verifier`, `test_cases`), and plain ones (`target`, `solution`, `options`, ...).
Text becomes NFC, so that what looks the same is the same.
"""

import json
import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import orjson

from broker.specs import code_in

Turn = tuple[str, str]
"""(role, content)."""
Prompt = str | tuple[Turn, ...]
ROLES = frozenset({"system", "user", "assistant"})


@dataclass(frozen=True)
class Row:
    """A checked row."""

    index: int
    """Its number in sample keys: stated by the row, or its place in the file, from 0."""
    prompt: Prompt
    target: str | None
    labeled: bool
    """False: the target, if there is one, is not for training."""
    key: str | None = None
    """The row's own id."""
    solution: str | None = None
    domain: str | None = None
    """verl's `ability`."""
    source: str | None = None
    """verl's `data_source`."""
    level: str | None = None
    difficulty: float | None = None
    views: tuple[Prompt, ...] = ()
    """Paraphrases of the prompt."""
    verifier: Mapping[str, Any] | None = None
    """Specification; None: the task source's own."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the verifier needs beside the target."""


def read(raw: Mapping[str, Any], place: int) -> Row:
    """The row at a place of its file, from 0."""
    extra, reward = _table(raw, "extra_info"), _table(raw, "reward_model")
    options = dict(sendable(_table(raw, "options"), "options"))
    tests = raw.get("test_cases", raw.get("tests"))
    target = _target(_first(raw.get("target"), raw.get("ground_truth"), reward.get("ground_truth")))
    if tests is not None:
        if not isinstance(tests, list) or not tests:
            raise ValueError(f"test_cases is {tests!r:.60}: expected a list that is not empty")
        if target is None:
            target = _spelling(tests, "test_cases")
        else:
            options["tests"] = sendable(tests, "test_cases")
    labeled = _first(extra.get("labeled"), raw.get("labeled"), True)
    if not isinstance(labeled, bool):
        raise ValueError(f"labeled is {labeled!r:.40}: expected true or false")
    if labeled and target is None:
        raise ValueError(
            "ground_truth is missing: expected target, ground_truth or reward_model.ground_truth, "
            f"test_cases, or labeled = false (there are {', '.join(raw) or 'no fields'})"
        )
    key = raw.get("id")
    solution = raw.get("solution")
    return Row(
        index=_index(_first(extra.get("index"), raw.get("index"), place)),
        prompt=prompt(raw.get("prompt"), "prompt"),
        target=target,
        labeled=labeled,
        key=None if key is None else _label(key, "id"),
        solution=None if solution is None else _text(solution, "solution"),
        domain=_label(_first(raw.get("domain"), raw.get("ability")), "domain"),
        source=_label(raw.get("data_source"), "data_source"),
        level=_label(_first(raw.get("level"), extra.get("level")), "level"),
        difficulty=_number(_first(raw.get("difficulty"), extra.get("difficulty"))),
        views=_views(_first(raw.get("views"), extra.get("views"), [])),
        verifier=_verifier(raw.get("verifier"), tests),
        options=options,
    )


def prompt(value: object, name: str) -> Prompt:
    """Text, or turns of {role, content} that end with a user's."""
    if isinstance(value, str):
        return _text(value, name)
    if not isinstance(value, Sequence) or not value:
        raise ValueError(f"{name} is {value!r:.60}: expected text or turns")
    turns: list[Turn] = []
    for place, turn in enumerate(cast("Sequence[object]", value)):
        if not isinstance(turn, Mapping) or turn.get("role") not in ROLES:
            raise ValueError(f"{name}[{place}] is {turn!r:.60}: expected a role of {sorted(ROLES)}")
        turns.append((str(turn["role"]), _text(turn.get("content"), f"{name}[{place}].content")))
    if turns[-1][0] != "user":
        raise ValueError(f"{name}: expected turns that end with a user's")
    return tuple(turns)


def _views(value: object) -> tuple[Prompt, ...]:
    if not isinstance(value, list):
        raise ValueError(f"views is {value!r:.60}: expected a list of prompts")
    return tuple(prompt(view, f"views[{place}]") for place, view in enumerate(value))


def _first(*values: object) -> Any:
    return next((value for value in values if value is not None), None)


def _table(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = raw.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} is {value!r:.60}: expected a table")
    return value


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} is {value!r:.60}: expected text that is not empty")
    return sound(value, name)


def sound(value: str, name: str) -> str:
    """NFC; a lone half of a surrogate pair, which JSON can spell, is no text."""
    if not value.isascii():
        value = unicodedata.normalize("NFC", value)
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"{name} holds a lone surrogate at {error.start}") from error
    return value


def _target(value: object) -> str | None:
    """Text; other JSON in its JSON spelling."""
    if value is None:
        return None
    if isinstance(value, str):
        return _text(value, "ground_truth")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"ground_truth is {value}: expected a finite number")
    return sound(_spelling(value, "ground_truth"), "ground_truth")


def _spelling(value: object, name: str) -> str:
    """As JSON. Parquet also holds dates and bytes, which have none."""
    try:
        text = json.dumps(value, ensure_ascii=False)
        text.encode("utf-8")
    except (TypeError, UnicodeEncodeError) as error:
        raise ValueError(f"{name} is {value!r:.60}: {error}") from error
    return text


def _label(value: object, name: str) -> str | None:
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return _text(value, name)


def _index(value: object) -> int:
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**53:
        raise ValueError(f"index is {value!r:.40}: expected an integer >= 0")
    return value


def _number(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"difficulty is {value!r:.40}: expected a finite number")
    return finite(value, "difficulty")


def finite(value: int | float, name: str) -> float:
    """JSON can spell integers that no float holds."""
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name} is {value!r:.40}: expected a finite number")
    return number


def sendable(value: Any, name: str) -> Any:
    """The value itself, if a message can hold it: no lone surrogates, no integers beyond 64 bits."""
    try:
        orjson.dumps(value, option=orjson.OPT_PASSTHROUGH_DATETIME)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from error
    return value


def _verifier(value: object, tests: object) -> Mapping[str, Any] | None:
    if value is None:
        return {"name": "code"} if tests is not None else None
    code = code_in(value)
    if code is not None:
        raise ValueError(f"verifier {code[-80:]!r} is code: only a configuration may name that")
    if isinstance(value, str):
        return {"name": value}
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise ValueError(f"verifier is {value!r:.60}: expected a name or a table with one")
    return sendable(value, "verifier")
