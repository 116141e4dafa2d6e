"""Verifiers by name (`"math"`, `{"name": "math", ...}`), or of the user's own (`"./mine.py:Grader"`).

An unknown name, option or value raises BadConfiguration. Importing this module imports no verifier.
"""

import difflib
import hashlib
import importlib
import importlib.util
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from pydantic import ValidationError

from broker.errors import BadConfiguration, SluiceError
from broker.messages import Json
from broker.specs import is_code
from workers.verifiers.protocol import Verifier

BUILTIN: Mapping[str, str] = {
    "appeals": "workers.verifiers.appeals:Appeals",
    "bleu": "workers.verifiers.bleu:Bleu",
    "choice": "workers.verifiers.choice:Choice",
    "code": "workers.verifiers.code:Code",
    "compose": "workers.verifiers.compose:Compose",
    "exact": "workers.verifiers.exact:Exact",
    "format": "workers.verifiers.format:Format",
    "knights_knaves": "workers.verifiers.knights_knaves:KnightsKnaves",
    "math": "workers.verifiers.math:Math",
    "numeric": "workers.verifiers.numeric:Numeric",
    "reasoning_gym": "workers.verifiers.reasoning_gym:ReasoningGym",
    "steps": "workers.verifiers.steps:Steps",
}

Specification = str | Mapping[str, object]


def normalised(spec: Specification) -> Json:
    """A specification as a table with at least `name`."""
    table: Json = {"name": spec} if isinstance(spec, str) else dict(spec)
    name = table.get("name")
    if not isinstance(name, str) or not name:
        raise BadConfiguration(f"verifier.name {name!r}: expected {_known()}")
    return table


def absolute(spec: Specification, base: Path) -> Json:
    """The specification with a path of the user's own made absolute, so that it holds in any folder."""
    table = normalised(spec)
    name = str(table["name"])
    if is_code(name):
        path, _, attribute = name.rpartition(":")
        table["name"] = f"{(base / path).resolve()}:{attribute}"
    return table


def build(spec: Specification) -> Verifier:
    """The verifier of a specification, its options checked."""
    return _build(json.dumps(normalised(spec), sort_keys=True, default=str))


@lru_cache(maxsize=256)
def _build(canonical: str) -> Verifier:
    table: Json = json.loads(canonical)
    name = str(table.pop("name"))
    kind = verifier_class(name)
    try:
        return kind.model_validate(table)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadConfiguration(
            f"verifier {name}: {where or 'options'}: {first['msg']} (got {first['input']!r:.80})"
        ) from error


def verifier_class(name: str) -> type[Verifier]:
    """The class behind a name; imports its module."""
    if is_code(name):
        found = _own(name)
    elif name in BUILTIN:
        module, _, attribute = BUILTIN[name].partition(":")
        found = getattr(importlib.import_module(module), attribute)
    else:
        close = difflib.get_close_matches(name, BUILTIN, n=1)
        meant = f"did you mean {close[0]!r}? " if close else ""
        raise BadConfiguration(f"verifier.name {name!r}: {meant}expected {_known()}")
    if not (isinstance(found, type) and issubclass(found, Verifier)):
        raise BadConfiguration(
            f"verifier.name {name!r}: expected a subclass of workers.verifiers.protocol.Verifier"
        )
    return found


@contextmanager
def users_code(method: str) -> Iterator[None]:
    """What the method of a verifier raises, maybe the user's own, as a fault of the configuration."""
    try:
        yield
    except SluiceError:
        raise
    except Exception as error:
        raise BadConfiguration(f"{method}() raised {type(error).__name__}: {error}") from error


def refuse_large(verifier: Verifier, memory_bytes: int) -> None:
    """BadConfiguration when a grader with that much memory could not start its programs."""
    wanted = verifier.program_bytes()
    if wanted > memory_bytes:
        raise BadConfiguration(
            f"verifier: memory_bytes {wanted}: expected at most that of a grader, "
            f"verifier.memory_bytes = {memory_bytes}"
        )


def identity(spec: Specification) -> tuple[str, str]:
    """(name, version) of a verifier as a verdict states them; a file's version includes its digest."""
    name = str(normalised(spec)["name"])
    version = verifier_class(name).version
    if not is_code(name):
        return name, version
    path, _, attribute = name.rpartition(":")
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12]
    return f"{Path(path).name}:{attribute}", f"{version}+{digest}"


def _own(name: str) -> object:
    path, _, attribute = name.rpartition(":")
    module = _module(str(Path(path).resolve()))
    if not hasattr(module, attribute):
        raise BadConfiguration(f"verifier.name {name!r}: {path} has no {attribute}")
    return getattr(module, attribute)


@lru_cache(maxsize=64)
def _module(path: str) -> ModuleType:
    if not path.endswith(".py") or not Path(path).is_file():
        raise BadConfiguration(f"verifier.name: {path}: no such Python file")
    unique = f"sluice_verifier_{hashlib.sha256(path.encode()).hexdigest()[:12]}"
    found = importlib.util.spec_from_file_location(unique, path)
    if found is None or found.loader is None:
        raise BadConfiguration(f"verifier.name: {path}: cannot be imported")
    module = importlib.util.module_from_spec(found)
    sys.modules[unique] = module
    try:
        found.loader.exec_module(module)
    except Exception as error:
        # The file is the user's: whatever it raises is a fault of the configuration.
        raise BadConfiguration(
            f"verifier.name: {path}: {type(error).__name__} on import: {error}"
        ) from error
    return module


def _known() -> str:
    return f"one of {', '.join(sorted(BUILTIN))}, or FILE.py:Class"
