"""Settings of the transport and of every process: `[run]`, `[nats]`, `[telemetry]`."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from broker.messages import Token


class Settings(BaseModel):
    """Base of all tables of the configuration: unknown keys are refused, and numbers that are none."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class RunSettings(Settings):
    """`[run]`: what every role must agree on."""

    id: Token = ""
    """Names the run's streams; `sluice run` makes one from name and time when empty."""
    name: Token = "run"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    steps: Annotated[int, Field(ge=1)]
    groups_per_step: Annotated[int, Field(ge=1)]
    group_size: Annotated[int, Field(ge=1)]
    """K: answers per group."""
    max_staleness: Annotated[int, Field(ge=0)] = 2
    """Eta: a trained token is at most this many versions old."""
    pace: Annotated[int, Field(ge=0)] | None = None
    """Steps' worth of groups requested ahead; None: max_staleness."""
    deterministic: bool = False
    max_attempts: Annotated[int, Field(ge=1)] = 3
    drain_wait_s: Annotated[float, Field(gt=0)] = 60.0
    """While draining, how long the policy waits for the open groups."""
    no_progress_steps: Annotated[int, Field(ge=1)] = 10
    """Stop with a reason after this many steps' worth of groups without any learning signal."""

    @model_validator(mode="after")
    def _deterministic_is_synchronous(self) -> "RunSettings":
        if self.deterministic and (self.max_staleness, self.pace or 0) != (0, 0):
            raise ValueError(
                f"run.deterministic needs max_staleness = 0 and pace = 0; "
                f"got {self.max_staleness} and {self.pace}"
            )
        return self

    @property
    def pace_steps(self) -> int:
        return self.max_staleness if self.pace is None else self.pace


class NatsSettings(Settings):
    """`[nats]`. Without a url, `sluice run` starts an embedded server."""

    url: str | None = None
    user: str | None = None
    password: str | None = None
    replicas: Annotated[int, Field(ge=1)] = 1
    sync_interval: Annotated[str, Field(pattern=r"^(always|(\d+(\.\d+)?(ms|s|m|h))+)$")] = "always"
    """Of the embedded server: `always`, or a duration such as `2m`, which a power loss may cost."""
    max_payload_bytes: Annotated[int, Field(ge=65_536)] = 8 * 1024 * 1024
    """Of the embedded server; larger messages travel through the object store."""
    store_bytes: Annotated[int, Field(ge=16_777_216)] | None = None
    """Disk that the embedded server may use; None: 90 % of what is free when it starts."""
    log_bytes: Annotated[int, Field(ge=1_048_576, lt=2**63)] = 1024 * 1024 * 1024
    """Quota of each log of the run; publishers wait when one is full."""
    connect_wait_s: Annotated[float, Field(gt=0)] = 20.0


class TelemetrySettings(Settings):
    """`[telemetry]`: where each process serves /metrics and /healthz."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 0
    """0: any free port; it is logged at start and told in the status."""
    level: Literal["debug", "info", "warning"] = "info"
