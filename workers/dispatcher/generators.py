"""Samples from seeded generators: problem i of a split is a pure function of (seed, split, i).

All problems of a task are distinct and numbered. A shuffle keyed by the source's own seed puts
some of them aside as held out; the split does not depend on the run's seed or on how many
held-out items an evaluation asks for, so no item ever moves from one side to the other.
"""

import hashlib
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from broker.errors import BadConfiguration
from workers.dispatcher.items import Item, ItemSet, Problem
from workers.dispatcher.permutation import permute
from workers.dispatcher.settings import SourceSettings
from workers.dispatcher.tasks.addition import Addition
from workers.dispatcher.tasks.knights import Knights
from workers.dispatcher.tasks.logic import Logic
from workers.dispatcher.tasks.ordering import Ordering
from workers.dispatcher.tasks.reasoning import Reasoning

HELD_OUT_LIMIT = 1000
TRAIN_ITEMS = 10_000


class Task(Protocol):
    """What a generator of one's own offers: `./mine.py:Name`, built with the source's options."""

    @property
    def VERSION(self) -> str:
        """Changes whenever the same number would give another problem."""
        ...

    @property
    def size(self) -> int:
        """How many problems there are."""
        ...

    def problem(self, number: int) -> Problem:
        """The problem with that number, 0 <= number < size; no two have the same prompt."""
        ...


TASKS: dict[str, Callable[..., Task]] = {
    "addition": Addition,
    "knights": Knights,
    "logic": Logic,
    "ordering": Ordering,
    "reasoning": Reasoning,
}


def load(settings: SourceSettings) -> tuple[ItemSet, ItemSet]:
    """(train, held out) of a generator; options `seed`, `items` and `passes` are not the task's own."""
    name = str(settings.generator)
    options = dict(settings.options)
    seed = _count(settings, options.pop("seed", 0), "seed", least=0)
    wanted = _count(settings, options.pop("items", TRAIN_ITEMS), "items", least=1)
    options.pop("passes", None)
    task = _build(settings, name, options)
    held_out = min(HELD_OUT_LIMIT, task.size // 5)
    if settings.eval_items > held_out:
        raise BadConfiguration(
            f"source.{settings.domain}.eval_items = {settings.eval_items}: {name} has {task.size} "
            f"problems and sets {held_out} aside"
        )
    train = min(settings.max_rows or wanted, wanted, task.size - held_out)
    if train < 1:
        raise BadConfiguration(f"source.{settings.domain}: {name} has no problem to train on")
    identity = json.dumps([name, task.VERSION, options, seed], sort_keys=True)
    version = hashlib.sha256(identity.encode()).hexdigest()[:12]
    dataset = name.rpartition(":")[2]
    return (
        ItemSet(dataset, version, _items(task, identity, range(held_out, held_out + train))),
        ItemSet(dataset, version, _items(task, identity, range(settings.eval_items))),
    )


def _items(task: Task, key: str, places: range) -> tuple[Item, ...]:
    """A range of the task's shuffled problems."""
    items: list[Item] = []
    for place in places:
        problem = task.problem(permute(place, size=task.size, key=key))
        solution = problem.answer if problem.solution is None else problem.solution
        items.append(
            Item(
                place, problem.prompt, problem.answer, solution, problem.difficulty, problem.options
            )
        )
    return tuple(items)


def _count(settings: SourceSettings, value: object, name: str, *, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadConfiguration(
            f"source.{settings.domain}.options.{name} = {value!r}: expected an integer >= {least}"
        )
    return value


def _build(settings: SourceSettings, name: str, options: dict[str, object]) -> Task:
    make = _from_file(settings, name) if ":" in name else TASKS.get(name)
    if make is None:
        raise BadConfiguration(
            f"source.{settings.domain}.generator = {name!r}: expected one of "
            f"{', '.join(sorted(TASKS))}, or ./file.py:Name"
        )
    try:
        task = make(**options)
    except (TypeError, ValueError) as error:
        raise BadConfiguration(f"source.{settings.domain}.options: {name}: {error}") from error
    for attribute in ("VERSION", "size", "problem"):
        if not hasattr(task, attribute):
            raise BadConfiguration(
                f"source.{settings.domain}.generator = {name!r}: has no {attribute}"
            )
    return task


def _from_file(settings: SourceSettings, name: str) -> Callable[..., Task]:
    """The class `Name` of `./file.py:Name`, relative to the working directory."""
    file, _, attribute = name.rpartition(":")
    spec = importlib.util.spec_from_file_location(f"sluice_source_{settings.domain}", Path(file))
    if spec is None or spec.loader is None or not Path(file).is_file():
        raise BadConfiguration(
            f"source.{settings.domain}.generator = {name!r}: no Python file {file}"
        )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Callable[..., Task] | None = getattr(module, attribute, None)
    if found is None:
        raise BadConfiguration(
            f"source.{settings.domain}.generator = {name!r}: {file} defines no {attribute}"
        )
    return found
