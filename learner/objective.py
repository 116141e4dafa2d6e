"""What `[learner]` may say of its objective: loss, corrections, reference KL, with their options. No torch.

Each is a name, or a table with `name` and the method's options; an unknown name or option is refused
when the configuration is read.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from broker.settings import Settings

Anchor = Literal["rollout", "old"]
"""Whose probability the trained one is divided by: of the distribution sampled from, or the trainer's own
as the step begins."""

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
BelowOne = Annotated[float, Field(gt=0, lt=1)]


class Band(Settings):
    """A part with a lower and an upper bound."""

    low: NotNegative
    high: Positive

    @model_validator(mode="after")
    def _is_not_empty(self) -> "Band":
        if self.low > self.high:
            raise ValueError(f"low {self.low:g}: expected at most high {self.high:g}")
        return self


class PpoClip(Settings):
    name: Literal["ppo_clip"] = "ppo_clip"
    anchor: Anchor = "rollout"
    clip_low: BelowOne = 0.2
    clip_high: Positive = 0.28
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """Upper bound of the ratio where the advantage is negative."""


class DrGrpo(Settings):
    name: Literal["dr_grpo"] = "dr_grpo"
    anchor: Anchor = "rollout"
    clip_low: BelowOne = 0.2
    clip_high: Positive = 0.2


class Gspo(Settings):
    name: Literal["gspo"] = "gspo"
    anchor: Anchor = "rollout"
    clip_low: BelowOne = 3e-4
    clip_high: Positive = 4e-4


class Cispo(Band):
    name: Literal["cispo"] = "cispo"
    anchor: Anchor = "rollout"
    low: NotNegative = 0.0
    high: Positive = 5.0


class Sapo(Settings):
    name: Literal["sapo"] = "sapo"
    anchor: Anchor = "rollout"
    tau_positive: Positive = 1.0
    tau_negative: Positive = 1.05


class DppoTv(Settings):
    name: Literal["dppo_tv"] = "dppo_tv"
    limit: BelowOne = 0.2
    """Of the difference of the two probabilities, in the direction that the advantage pushes."""
    penalty: Annotated[float, Field(ge=0)] = 1e-3
    """On the square of the log-ratio."""


class Decoupled(Settings):
    name: Literal["decoupled"] = "decoupled"
    proximal: Literal["recompute", "loglinear"] = "recompute"
    clip_low: BelowOne = 0.2
    clip_high: Positive = 0.2
    behavior_cap: Positive | None = None
    """Tokens whose proximal / rollout ratio is above it are left out."""


class Reinforce(Settings):
    name: Literal["reinforce"] = "reinforce"


class Tis(Settings):
    name: Literal["tis"] = "tis"
    level: Literal["token", "sequence"] = "token"
    cap: Positive = 2.0


class IcePop(Band):
    name: Literal["icepop"] = "icepop"
    low: NotNegative = 0.5
    high: Positive = 5.0
    inside: Literal["ratio", "one"] = "ratio"
    """What a token inside the band is multiplied by."""


class SequenceMask(Band):
    name: Literal["sequence_mask"] = "sequence_mask"
    statistic: Literal["geometric_mean", "product", "k3"] = "geometric_mean"
    low: NotNegative = 0.99
    """Of the geometric mean; 0 for the others."""
    high: Positive = 1.01
    """Of the geometric mean; 3 for the product, 0.01 for k3."""

    @model_validator(mode="before")
    @classmethod
    def _band_of_its_statistic(cls, tree: Any) -> Any:
        match tree:
            case {"statistic": "product"}:
                return {"low": 0.0, "high": 3.0} | tree
            case {"statistic": "k3"}:
                return {"low": 0.0, "high": 0.01} | tree
            case _:
                return tree


class M2po(Settings):
    name: Literal["m2po"] = "m2po"
    threshold: Positive = 0.04


class Opsm(Settings):
    name: Literal["opsm"] = "opsm"
    threshold: Positive = 1e-4


class KlToReference(Settings):
    """`[learner] kl`: a term beside the loss, multiplied by neither weights nor corrections."""

    name: Literal["k1", "k2", "k3"]
    coefficient: Positive
    path: Path | None = None
    """Hugging Face folder with the weights of the frozen reference; None: the run's version 0."""


def _as_table(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


LossSettings = Annotated[
    PpoClip | DrGrpo | Gspo | Cispo | Sapo | DppoTv | Decoupled | Reinforce,
    Field(discriminator="name"),
]
CorrectionSettings = Annotated[
    Tis | IcePop | SequenceMask | M2po | Opsm, Field(discriminator="name")
]
AnyLoss = PpoClip | DrGrpo | Gspo | Cispo | Sapo | DppoTv | Decoupled | Reinforce
AnyCorrection = Tis | IcePop | SequenceMask | M2po | Opsm
NamedLoss = Annotated[LossSettings, BeforeValidator(_as_table)]
NamedCorrection = Annotated[CorrectionSettings, BeforeValidator(_as_table)]

Denominator = Literal["all_tokens", "kept_tokens", "sequences", "seq_mean", "fixed"]


class Objective(Settings):
    """The part of `[learner]` that says what is minimised."""

    loss: NamedLoss = PpoClip()
    denominator: Denominator = "all_tokens"
    corrections: tuple[NamedCorrection, ...] = ()
    """Applied together: their factors are multiplied."""
    kl: KlToReference | None = None
    entropy_bonus: Annotated[float, Field(ge=0)] = 0.0
    """Times the entropy of the distribution each token was chosen from, taken off the loss."""
    regularized_rows: Literal["all", "signal"] = "all"
    """Which rows the KL and the entropy bonus act on; `signal`: those with weighted advantage."""
    updates_per_step: Annotated[int, Field(ge=1)] = 1
    """Optimizer updates on consecutive parts of a window's groups."""

    @model_validator(mode="after")
    def _parts_fit_together(self) -> "Objective":
        if self.loss.name == "dr_grpo" and self.denominator != "fixed":
            raise ValueError(
                f"denominator {self.denominator!r} with loss dr_grpo: its point is that every token "
                "weighs the same whatever the answer's length; expected 'fixed'"
            )
        twice = [c.name for c in self.corrections if reweighs(c)]
        if twice and weighs_by_rollout(self.loss):
            raise ValueError(
                f"corrections {', '.join(twice)} with loss {self.loss.name}: it weighs by the ratio to the "
                'rollout already; expected anchor = "old", or corrections that only mask'
            )
        return self


def reweighs(correction: AnyCorrection) -> bool:
    """Multiplies what it keeps by old / rollout, rather than by 0 or 1."""
    return isinstance(correction, Tis) or (
        isinstance(correction, IcePop) and correction.inside == "ratio"
    )


def weighs_by_rollout(loss: AnyLoss) -> bool:
    if isinstance(loss, DppoTv | Decoupled):
        return True
    return not isinstance(loss, Reinforce) and loss.anchor == "rollout"


def needs_old(objective: Objective) -> bool:
    """Whether the trainer's log-probabilities from before the step are part of the objective."""
    loss = objective.loss
    old = getattr(loss, "anchor", None) == "old" or getattr(loss, "proximal", None) == "recompute"
    return old or any(not isinstance(c, Opsm) for c in objective.corrections)


def needs_whole_step(objective: Objective) -> bool:
    """Whether a correction compares all tokens of an update, so that they must be known beforehand."""
    return any(isinstance(c, M2po) for c in objective.corrections)
