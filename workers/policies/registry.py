"""How a stage of the policy program is found by name, or in a file of one's own, and given its options.

A name nobody registered, an option a method does not have, or a value it cannot take is refused as
BadConfiguration before the run starts; nothing falls back to a default silently.
"""

import hashlib
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import ClassVar, Generic, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from broker.errors import BadConfiguration

S = TypeVar("S")
"""What the methods of a stage have in common."""
T = TypeVar("T", bound=type)

SIGNALS = frozenset({"score", "answer", "length", "logprob"})
"""What every verified group provides; what a method needs beside them the engine must measure."""


class Method(BaseModel):
    """Base of a stage's methods: the fields are the options of the configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    needs: ClassVar[frozenset[str]] = frozenset()
    """Signals it reads beside scores and lengths."""


class Named(Generic[S]):
    """A method with the name it was configured under and all its options, defaults included."""

    def __init__(self, name: str, method: S, table: Mapping[str, object]) -> None:
        self.name = name
        self.method = method
        self.table = dict(table)
        """Canonical: what the policy version is a digest of."""

    @property
    def reads(self) -> frozenset[str]:
        """Signals that the method says it needs."""
        return frozenset(getattr(self.method, "needs", frozenset()))

    @property
    def needs(self) -> frozenset[str]:
        """Of them, those that not every verified group provides."""
        return self.reads - SIGNALS


class Registry(Generic[S]):
    """The methods of one stage."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self._classes: dict[str, type] = {}

    def register(self, name: str) -> Callable[[T], T]:
        def enter(method: T) -> T:
            if name in self._classes:
                raise ValueError(f"policy.{self.stage}: {name!r} is registered twice")
            self._classes[name] = method
            return method

        return enter

    def names(self) -> list[str]:
        return sorted(self._classes)

    def find(self, name: str) -> type:
        """The class of a method. BadConfiguration when there is none."""
        return self._find(name)[0]

    def build(self, spec: str | Mapping[str, object]) -> Named[S]:
        """The method that `spec`, a name or a table with a name, describes."""
        table = {"name": spec} if isinstance(spec, str) else dict(spec)
        name = table.pop("name", None)
        if not isinstance(name, str):
            raise BadConfiguration(f"policy.{self.stage} {spec!r}: expected a name")
        found, origin = self._find(name)
        method = self._construct(found, name, table)
        options = method.model_dump(mode="json") if isinstance(method, BaseModel) else table
        return Named(_short(name), cast("S", method), {"name": name, **origin, **options})

    def _find(self, name: str) -> tuple[type, dict[str, str]]:
        if name in self._classes:
            return self._classes[name], {}
        if ":" in name:
            return _load(name, self.stage)
        raise BadConfiguration(
            f"policy.{self.stage} {name!r}: expected one of {', '.join(self.names())}, or ./FILE.py:NAME"
        )

    def _construct(self, found: type, name: str, options: Mapping[str, object]) -> object:
        try:
            return found(**options)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "(whole)"
            fields = ", ".join(getattr(found, "model_fields", {})) or "none"
            raise BadConfiguration(
                f"policy.{self.stage} {name!r}: {where}: {first['msg']} (got {first['input']!r}); "
                f"its options are {fields}"
            ) from error
        except TypeError as error:
            raise BadConfiguration(f"policy.{self.stage} {name!r}: {error}") from error


def _short(name: str) -> str:
    """The last part of a name, fit for a reason word."""
    return name.rpartition(":")[2] if ".py:" in name else name


def _load(name: str, stage: str) -> tuple[type, dict[str, str]]:
    """A class from `./FILE.py:NAME` or `package.module:NAME`, with the digest of its source."""
    place, _, attribute = name.rpartition(":")
    try:
        module = _module_of_file(Path(place)) if place.endswith(".py") else _module(place)
    except (OSError, ImportError, SyntaxError) as error:
        raise BadConfiguration(f"policy.{stage} {name!r}: cannot be loaded: {error}") from error
    found = getattr(module, attribute, None)
    if not isinstance(found, type):
        raise BadConfiguration(f"policy.{stage} {name!r}: {place} has no class {attribute}")
    source = Path(module.__file__).read_bytes() if module.__file__ else b""
    return found, {"source_sha256": hashlib.sha256(source).hexdigest()}


def _module(name: str) -> ModuleType:
    return importlib.import_module(name)


def _module_of_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"sluice_policy_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
