"""The run's configuration: every package's settings composed, read from TOML, overridden by --set."""

import hashlib
import json
import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError, model_validator

from broker.errors import BadConfiguration
from broker.settings import NatsSettings, RunSettings, Settings, TelemetrySettings
from learner.settings import LearnerSettings, ModelSettings, WarmupSettings
from store.settings import StoreSettings
from workers.dispatcher.settings import (
    EvaluationSettings,
    PromptSettings,
    SamplingSettings,
    SourceSettings,
)
from workers.policies.settings import PolicySettings
from workers.rollout.settings import RolloutSettings
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


def set_path(tree: dict[str, object], assignment: str) -> None:
    """Apply one `--set a.b=value`; the value is read as TOML, or as a plain string."""
    path, separator, text = assignment.partition("=")
    if not separator or not path:
        raise BadConfiguration(f"--set {assignment!r}: expected KEY.KEY=VALUE")
    try:
        value: object = tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        value = text
    *parents, leaf = path.split(".")
    at = tree
    for key in parents:
        below = at.setdefault(key, {})
        if not isinstance(below, dict):
            raise BadConfiguration(f"--set {assignment!r}: {key} is {below!r}, not a table")
        at = below
    at[leaf] = value


def load(path: Path, overrides: tuple[str, ...] = ()) -> Configuration:
    """Read and check a configuration; relative paths in it are relative to the file's folder."""
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadConfiguration(f"{path}: no such configuration file") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadConfiguration(f"{path}: not readable as TOML: {error}") from error
    for assignment in overrides:
        set_path(tree, assignment)
    return check(tree, str(path))


def check(tree: dict[str, object], origin: str) -> Configuration:
    try:
        return Configuration.model_validate(tree)
    except ValidationError as error:
        lines = [
            f"  {'.'.join(str(part) for part in e['loc']) or '(whole)'}: {e['msg']} (got {e['input']!r:.80})"
            for e in error.errors(include_url=False)
        ]
        raise BadConfiguration(f"{origin}:\n" + "\n".join(lines)) from error


def digest(configuration: Configuration) -> str:
    """sha256 over the canonical JSON of everything that decides what is trained."""
    tree = configuration.model_dump(mode="json", exclude={"nats", "store", "telemetry"})
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()
