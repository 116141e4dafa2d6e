"""The run's configuration: every package's settings composed, read from TOML, overridden by --set."""

import hashlib
import json
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from broker.errors import BadConfiguration
from broker.settings import NatsSettings, RunSettings, Settings, TelemetrySettings
from broker.specs import code_in
from learner.settings import LearnerSettings, ModelSettings, WarmupSettings
from ops.problems import CREDENTIALS, problems
from ops.sharing import why_not_sent, why_not_shared
from store.settings import StoreSettings
from workers.dispatcher.settings import (
    EvaluationSettings,
    PromptSettings,
    SamplingSettings,
    SourceSettings,
)
from workers.policies.settings import PolicySettings
from workers.rollout.settings import RolloutSettings
from workers.verifiers.registry import build, refuse_large
from workers.verifiers.settings import VerifierSettings


class Configuration(Settings):
    """One run."""

    run: RunSettings
    model: ModelSettings
    source: Annotated[tuple[SourceSettings, ...], Field(min_length=1)]
    prompt: PromptSettings = PromptSettings()
    sampling: SamplingSettings = SamplingSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    warmup: WarmupSettings = WarmupSettings()
    learner: LearnerSettings = LearnerSettings()
    policy: PolicySettings = PolicySettings()
    rollout: RolloutSettings = RolloutSettings()
    verifier: VerifierSettings = VerifierSettings()
    nats: NatsSettings = NatsSettings()
    store: StoreSettings = StoreSettings()
    telemetry: TelemetrySettings = TelemetrySettings()

    @model_validator(mode="after")
    def _domains_are_distinct(self) -> "Configuration":
        domains = [source.domain for source in self.source]
        if len(set(domains)) != len(domains):
            raise ValueError(f"source.domain {domains}: expected each domain once")
        return self

    @model_validator(mode="after")
    def _programs_fit_in_their_graders(self) -> "Configuration":
        for source in self.source:
            # Code of the user's own is imported where it is needed alone, and refused there.
            if code_in(source.verifier) is None:
                refuse_large(build(source.verifier), self.verifier.memory_bytes)
        return self

    @model_validator(mode="after")
    def _deterministic_engine(self) -> "Configuration":
        if self.run.deterministic and self.rollout.engine != "torch":
            raise ValueError(
                f"run.deterministic needs rollout.engine = 'torch'; got {self.rollout.engine!r}, whose "
                "batches depend on when requests arrive"
            )
        return self

    @model_validator(mode="after")
    def _gpu_that_can_be_shared(self) -> "Configuration":
        if self.rollout.vllm.share_gpu and (problem := why_not_shared(self)):
            raise ValueError(f"rollout.vllm.share_gpu: {problem}")
        if self.learner.transfer != "none" and (problem := why_not_sent(self)):
            raise ValueError(f"learner.transfer = {self.learner.transfer!r}: {problem}")
        return self

    @model_validator(mode="after")
    def _device_that_vllm_knows(self) -> "Configuration":
        if self.rollout.engine == "vllm" and ":" in self.model.device:
            kind = self.model.device.partition(":")[0]
            raise ValueError(
                f"model.device {self.model.device!r} with rollout.engine = 'vllm', which takes the first GPU "
                f"it sees: expected {kind!r} and the environment variable CUDA_VISIBLE_DEVICES"
            )
        return self


def set_path(tree: dict[str, object], assignment: str) -> None:
    """Apply one `--set a.b=value` (`source.0.path=...` in an array), read as TOML or a plain string."""
    path, separator, text = assignment.partition("=")
    if not separator or not path:
        raise BadConfiguration(f"--set {assignment!r}: expected KEY.KEY=VALUE")
    try:
        value: object = tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        value = text
    *parents, leaf = path.split(".")
    at: object = tree
    for key in parents:
        at = _below(at, key, assignment)
    if isinstance(at, dict):
        at[leaf] = value
    elif isinstance(at, list):
        at[_place(at, leaf, assignment)] = value
    else:
        raise BadConfiguration(f"--set {assignment!r}: {parents[-1]} is {at!r}, not a table")


def _below(at: object, key: str, assignment: str) -> object:
    """The table or array under a key; a table that is not there is made."""
    if isinstance(at, list):
        return at[_place(at, key, assignment)]
    if isinstance(at, dict):
        return at.setdefault(key, {})
    raise BadConfiguration(f"--set {assignment!r}: above {key} is {at!r}, not a table")


def _place(at: list[object], key: str, assignment: str) -> int:
    if key.isdecimal() and int(key) < len(at):
        return int(key)
    numbered = assignment.replace(f".{key}", f".0.{key}", 1)
    hint = "" if key.isdecimal() else f"; the tables of an array are numbered, as in {numbered}"
    raise BadConfiguration(
        f"--set {assignment!r}: expected 0..{len(at) - 1} where {key!r} stands{hint}"
    )


def load(
    path: Path, overrides: tuple[str, ...] = (), environment: Mapping[str, str] | None = None
) -> Configuration:
    """Read and check a configuration; relative paths in it are relative to the file's folder.

    `SLUICE_NATS__URL=...` in the environment overrides the file, `--set nats.url=...` both.
    """
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadConfiguration(f"{path}: no such configuration file") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadConfiguration(f"{path}: not readable as TOML: {error}") from error
    for assignment in (
        *from_environment(os.environ if environment is None else environment),
        *overrides,
    ):
        set_path(tree, assignment)
    return check(with_absolute_paths(tree, path.resolve().parent), str(path))


def from_environment(environment: Mapping[str, str]) -> list[str]:
    """Assignments that the environment makes: secrets do not belong into a file."""
    found: list[str] = []
    for name, value in sorted(environment.items()):
        if name.startswith("SLUICE_") and "__" in name:
            path = [part.lower() for part in name.removeprefix("SLUICE_").split("__")]
            # Always text, even when all its characters are digits.
            text = json.dumps(value) if path[-1] in CREDENTIALS else value
            found.append(f"{'.'.join(path)}={text}")
    return found


PATH_KEYS = {"path", "eval_path"}
CODE_REFERENCE = re.compile(r"\.{1,2}/.+\.py:\w+")
"""`./mine.py:Grader`: code of the user's own, beside the configuration."""


def with_absolute_paths(tree: Any, folder: Path) -> Any:
    """The tree with file paths and references to one's own code made independent of where it is read."""

    def absolute(key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {k: absolute(k, v) for k, v in value.items()}
        if isinstance(value, list):
            return [absolute(key, v) for v in value]
        if isinstance(value, str) and (key in PATH_KEYS or CODE_REFERENCE.fullmatch(value)):
            # An absolute path on the right of `/` stands as it is.
            return os.path.normpath(folder / Path(value).expanduser())
        return value

    return absolute("", tree)


def check(tree: dict[str, object], origin: str) -> Configuration:
    try:
        return Configuration.model_validate(tree)
    except ValidationError as error:
        raise BadConfiguration(
            f"{origin}: " + "\n  ".join(problems(error, Configuration))
        ) from error


MAY_DIFFER: dict[str, Any] = {
    "nats": True,
    "store": True,
    "telemetry": True,
    "run": {"id", "steps", "drain_wait_s", "no_progress_steps"},
    "rollout": {"processes", "slots", "weights_wait_s", "vllm"},
    "verifier": {"processes", "pool", "slots"},
    "learner": {
        "checkpoint_every",
        "keep_checkpoints",
        "on_mismatch",
        "weights",
        "transfer",
        "identity_band",
    },
    "evaluation": True,
}
"""Keys that a resumed run may change: they decide where and how long it runs, not what is trained."""


def digest(configuration: Configuration) -> str:
    """sha256 over the canonical JSON of everything that decides what is trained."""
    tree = configuration.model_dump(mode="json", exclude=MAY_DIFFER)
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def without_secrets(configuration: Configuration) -> dict[str, Any]:
    """What may be recorded: all but addresses and passwords."""
    return configuration.model_dump(
        mode="json", exclude={"nats": {"url", "user", "password"}, "store": {"url"}}
    )


def check_same(before: Mapping[str, Any], now: Configuration, run_id: str) -> None:
    """BadConfiguration naming the keys that a run may not change once it was started.

    before: the whole configuration as it was recorded, maybe by another version of this program.
    """
    tree = now.model_dump(mode="json")
    changed = sorted(_differences(_deciding(before), _deciding(tree)))
    if changed:
        raise BadConfiguration(
            f"run {run_id} was started with another configuration; changed: {', '.join(changed)}. "
            "Start a new run, or restore them"
        )


def _deciding(tree: Mapping[str, Any]) -> dict[str, Any]:
    """What of a configuration decides what is trained."""
    kept: dict[str, Any] = {}
    for table, value in tree.items():
        free = MAY_DIFFER.get(table, set())
        if free is not True:
            kept[table] = (
                {k: v for k, v in value.items() if k not in free}
                if isinstance(value, dict)
                else value
            )
    return kept


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], path: str = "") -> set[str]:
    """Keys, dotted, whose values differ."""
    found: set[str] = set()
    for key in {*before, *now}:
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found |= _differences(old, new, f"{path}{key}.")
        elif old != new:
            found.add(f"{path}{key}")
    return found
