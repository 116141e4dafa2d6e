"""Settings of the policy program: `[policy]`, a table of stages, each by name with its options."""

from typing import Annotated

from pydantic import Field

from broker.messages import Json, Token
from broker.settings import Settings


class Stages(Settings):
    """Every stage is optional; a stage is a name, or a table with `name` and the method's options."""

    preset: str | None = None
    """A table under a name; what is stated beside it takes precedence."""
    target: str | Json = "gold"
    admit: tuple[str | Json, ...] = ()
    reward: tuple[str | Json, ...] = ("verified",)
    advantage: str | Json = "grpo"
    mask: tuple[str | Json, ...] = ()
    """Rows left out of the loss whatever their weight."""
    weight: str | Json = "uniform"
    mixer: str | Json = "static"


class ShadowSettings(Stages):
    """`[[policy.shadow]]`: a policy that is decided and recorded beside the live one, never trained on."""

    name: Token | None = None
    """Under which its decisions are recorded; None: the preset's name, or its stages'."""


class PolicySettings(Stages):
    refill_rounds: Annotated[int, Field(ge=1)] = 10
    """A window closes with what it has after this many times groups_per_step groups were seen for it."""
    shadow: tuple[ShadowSettings, ...] = ()
