"""Reasoning Gym: any of its tasks, judged by the task's own scorer; only a full score counts as right.

The item names task, configuration, seed and index; the entry is made again from them, so that what a scorer
needs beside the answer cannot be lost on the way. Most scorers pay something for wrong answers, and some for
an answer to another puzzle; and some evaluate the answer as Python: only literals and formulas get there.
"""

import ast
import importlib
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, Literal

from broker.errors import BadConfiguration
from broker.messages import Json
from workers.verifiers.mathtext.extract import last_tag
from workers.verifiers.protocol import (
    Finding,
    Ungradable,
    Verifier,
    judged,
    no_answer,
    ungradable,
)
from workers.verifiers.reasoning_fixes import CORRECTED

INSTALL = "pip install --constraint ops/constraints.txt '.[reasoning]'"
ANSWER_CHARS = 4_000
LITERAL = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
"""Tasks whose scorers hand the answer to eval, and pay part for a list: they are given literals alone."""
FORMULA = frozenset(
    {
        "countdown",
        "intermediate_integration",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
    }
)
"""Tasks whose scorers hand the answer to sympy's parser, which is eval, and what that gives to it again."""
NESTING = "composite"
"""Hands the answer to the scorer of another task, which the item does not name."""

# ASCII alone: Python reads other letters as these, so that a name could be spelled to pass for none.
_ARITHMETIC = re.compile(r"[\w\s+\-*/^().,=]*", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_TRIGONOMETRIC = frozenset({"sin", "cos", "tan", "sec", "csc", "cot"})
_FUNCTIONS = _TRIGONOMETRIC | {"asin", "acos", "atan", "sinh", "cosh", "tanh", "exp", "log", "sqrt"}
_ATTRIBUTE = re.compile(r"\.\s*[A-Za-z_]|__")


class ReasoningGym(Verifier):
    """Item: `{"dataset": NAME, "config": {...}, "seed": N, "index": N}`."""

    version: ClassVar[str] = "2"

    tag: str | None = "answer"
    """Only what stands in the last `<tag>` is the answer; None: all that follows `</think>`."""
    score: Literal["solved", "own"] = "solved"
    """1 or 0; or what the task's scorer pays, part of it for wrong answers too."""

    def ready(self) -> None:
        _library()

    def prepare(self) -> None:
        _library()

    def check(self, target: str | None, item: Json) -> None:
        _entry(*_named(item))

    def pays_partly(self) -> bool:
        return self.score == "own"

    def grade(self, response: str, target: str | None, item: Json) -> Finding:
        text = response.rpartition("</think>")[2]
        answer = last_tag(text, self.tag) if self.tag else text
        if answer is None or not answer.strip():
            return no_answer("empty" if self.tag is None else f"no <{self.tag}>")
        answer = answer.strip()
        if target is None:
            return ungradable("no target", answer, answer)
        name = str(item.get("dataset"))
        dataset, entry = _entry(*_named(item))
        if len(answer) > ANSWER_CHARS:
            return judged(
                False, answer, None, f"{len(answer)} characters; the limit is {ANSWER_CHARS}"
            )
        given = harmless(answer, name, entry)
        if given is None:
            return judged(False, answer, answer, "no plain expression")
        return self._judged(answer, given, name, dataset, entry)

    def stated(self, target: str, item: Json) -> str:
        return f"<{self.tag}>{target}</{self.tag}>" if self.tag else target

    def _judged(
        self, answer: str, given: str, name: str, dataset: Any, entry: Mapping[str, Any]
    ) -> Finding:
        corrected = CORRECTED.get(name)
        try:
            paid = min(max(float(dataset.score_answer(given, entry)), 0.0), 1.0)
            solved = paid == 1.0 and (corrected is None or corrected(answer, entry))
        except Exception as error:
            # The entry is the library's own: what its scorer cannot read is the answer.
            return judged(False, answer, answer, f"its scorer raised {type(error).__name__}")
        score = paid if self.score == "own" and paid < 1.0 else float(solved)
        return judged(score, answer, answer, f"its scorer pays {paid:g}")


def harmless(answer: str, name: str, entry: Mapping[str, Any]) -> str | None:
    """What a task's scorer may be given for an answer; None: nothing, since it would execute it."""
    if name in LITERAL:
        right = entry["metadata"].get("valid_answers", (entry["answer"],))
        return answer if answer in right else literal(answer)
    if name in FORMULA and answer != entry["answer"] and not is_formula(answer):
        return None
    return answer


def literal(text: str) -> str | None:
    """Python's own spelling of a list or another value, in which nothing can be called; None: it is none."""
    try:
        return repr(ast.literal_eval(text))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None


def is_formula(text: str) -> bool:
    """Whether evaluating the text as Python can do nothing but arithmetic."""
    if not _ARITHMETIC.fullmatch(text) or _ATTRIBUTE.search(text):
        return False
    return all(len(name) == 1 or name in _FUNCTIONS for name in _NAME.findall(text))


def _library() -> Any:
    """The package; importing it takes seconds."""
    try:
        return importlib.import_module("reasoning_gym")
    except ImportError as error:
        raise BadConfiguration(f"verifier reasoning_gym: it is not installed: {INSTALL}") from error


def _named(item: Json) -> tuple[str, str, int, int]:
    """(dataset, configuration as JSON, seed, index) of an item. Raises Ungradable."""
    name, config = item.get("dataset"), item.get("config", {})
    if not isinstance(name, str) or not isinstance(config, dict):
        raise Ungradable(f"dataset {name!r}, config {config!r:.60}: expected a name and a table")
    if name == NESTING:
        raise Ungradable(f"dataset {name}: expected the name of a single task")
    seed, index = item.get("seed"), item.get("index")
    if not (isinstance(seed, int) and isinstance(index, int) and min(seed, index) >= 0):
        raise Ungradable(f"seed, index {seed, index}: expected two integers >= 0")
    return name, json.dumps(config, sort_keys=True), seed, index


@lru_cache(maxsize=64)
def _dataset(name: str, config: str, seed: int) -> Any:
    try:
        return _library().create_dataset(name, **{**json.loads(config), "seed": seed})
    except (ValueError, TypeError, AssertionError) as error:
        raise Ungradable(f"dataset {name}, config {config}: {error}") from error


@lru_cache(maxsize=4096)
def _entry(name: str, config: str, seed: int, index: int) -> tuple[Any, Mapping[str, Any]]:
    dataset = _dataset(name, config, seed)
    return dataset, dataset[index]
