"""Any dataset of Reasoning Gym, by name and configuration, or at a level of its own curriculum.

Endless: a problem's number is its seed and index. The item carries what makes the entry again, which is what
the verifier `reasoning_gym` needs. A curriculum is a source for each level, with a domain of its own, and the
mixer `curriculum`, which moves between them.
"""

import hashlib
import importlib
import json
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from broker.messages import Json
from workers.dispatcher.items import Problem

INSTALL = "pip install --constraint ops/constraints.txt '.[reasoning]'"
CHUNK = 500
"""Problems of one seed: entry i of a seed is often entry i - 1 of the next."""


class Reasoning:
    """`dataset`: the library's name. `level`: every attribute of its curriculum at that level, capped;
    `config` states the others."""

    size = 10**9

    def __init__(
        self, *, dataset: str, config: Json | None = None, level: int | None = None
    ) -> None:
        self._name = dataset
        self._config = dict(config or {})
        self._level = level
        if level is not None:
            of_level = _at_level(dataset, level)
            if both := sorted(of_level.keys() & self._config.keys()):
                raise ValueError(
                    f"config names {', '.join(both)}, which level = {level} sets: name one"
                )
            self._config |= of_level
        self._dataset(0)

    @property
    def VERSION(self) -> str:
        return version("reasoning-gym")

    def problem(self, number: int) -> Problem:
        chunk, index = divmod(number, CHUNK)
        dataset, seed = self._dataset(chunk)
        entry = dataset[index]
        options: Json = {
            "dataset": self._name,
            "config": self._config,
            "seed": seed,
            "index": index,
        }
        # Some tasks have many solutions and store none.
        answer = "-" if entry["answer"] is None else str(entry["answer"])
        difficulty = None if self._level is None else float(self._level)
        solution = f"<answer>{answer}</answer>"
        return Problem(str(entry["question"]), answer, solution, difficulty, options)

    def _dataset(self, chunk: int) -> tuple[Any, int]:
        digest = hashlib.blake2b(f"{self._name}:{chunk}".encode(), digest_size=4).digest()
        seed = int.from_bytes(digest, "little")
        return _made(self._name, json.dumps(self._config, sort_keys=True), seed), seed


@lru_cache(maxsize=64)
def _made(name: str, config: str, seed: int) -> Any:
    try:
        return _library().create_dataset(name, **{**json.loads(config), "seed": seed})
    except (AssertionError, TypeError) as error:
        raise ValueError(f"dataset {name}: {error}") from error


def _at_level(name: str, level: int) -> Json:
    """The configuration of that level, without what the library fills in by itself."""
    if level < 0:
        raise ValueError(f"level = {level}: expected >= 0")
    library = _library()
    if not library.factory.has_curriculum(name):
        raise ValueError(f"level = {level}: {name} has no curriculum")
    curriculum = library.factory.create_curriculum(name)
    for attribute in curriculum.attributes.values():
        curriculum.set_attr_level(attribute.name, min(level, len(attribute.levels) - 1))
    made = curriculum.generate_configuration({})
    fields = [
        field
        for attribute in curriculum.attributes.values()
        for field in (
            getattr(attribute, "field_name", None),
            getattr(attribute, "lower_field_name", None),
            getattr(attribute, "upper_field_name", None),
        )
        if field
    ]
    return {field: getattr(made, field) for field in fields}


def _library() -> Any:
    try:
        version("reasoning-gym")
        return importlib.import_module("reasoning_gym")
    except (ImportError, PackageNotFoundError) as error:
        raise ValueError(f"generator reasoning: it is not installed: {INSTALL}") from error
