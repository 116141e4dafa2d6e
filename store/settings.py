"""Settings of the audit store: `[store]`."""

from typing import Annotated

from pydantic import Field

from broker.settings import Settings


class StoreSettings(Settings):
    url: str | None = None
    """postgresql://...; without one, `sluice run` starts an embedded server."""
    batch_rows: Annotated[int, Field(ge=1)] = 10_000
    flush_s: Annotated[float, Field(gt=0)] = 0.5
    connect_wait_s: Annotated[float, Field(gt=0)] = 20.0
