"""Policy programs under a name. `dataflex:NAME` is what DataFlex-RL's published code does.

What the learner has to do for a method is not in here: DAPO's clip-higher and token-level loss are
the learner's defaults, Dr. GRPO wants `learner.denominator = "fixed"`.
"""

from collections.abc import Mapping
from typing import TypeVar

from broker.errors import BadConfiguration
from workers.policies.settings import Stages

Table = Mapping[str, object]
S = TypeVar("S", bound=Stages)

SELECTORS: dict[str, Table] = {
    "difffilter": {"scorer": "group_solve_rate", "actuator": "threshold_band"},
    "maxvar": {"scorer": "reward", "actuator": "max_variance"},
    "gfpo": {"scorer": "token_efficiency", "actuator": "group_top_k"},
    "topk": {"scorer": "advantage_magnitude", "actuator": "top_fraction"},
}
REWEIGHTERS: dict[str, Table] = {
    "ar": {"scorer": "token_prob", "actuator": "token_blend"},
    "per": {"scorer": "advantage_magnitude", "actuator": "power"},
    "softmax": {"scorer": "advantage_magnitude", "actuator": "softmax"},
    "diffband": {"scorer": "reward", "actuator": "quantile_band"},
}
MIXERS = ("static", "reward_gap", "dump_ucb", "tscl")
ADVANTAGES = ("dr_grpo", "rloo", "reinforce_pp", "maxrl", "batch_std", "dbb")
SPURIOUS = ("random", "incorrect", "inverted", "format", "majority", "constant")
NOISE_RATES = {"rho0": 0.1, "rho1": 0.2}
"""Those of the worked example; state your verifier's own."""


STRENGTHS: dict[str, Table] = {
    "band_0_1": {"low": 0.0, "high": 1.0},
    "band_inclusive": {"inclusive": True},
}
"""Of the difficulty filter (D4c)."""
FRACTIONS = {"top_25": 0.25, "top_75": 0.75}
"""Of topk, which keeps half."""

IDENTITY: Table = {
    "admit": ("all",),
    "reward": ("verified", {"name": "affine", "scale": 1.0, "shift": 0.0}),
    "weight": {
        "scorer": "group_solve_rate",
        "actuator": "threshold_band",
        "low": -1.0,
        "high": 2.0,
    },
}
"""Admission, reward and weight take part and change nothing: an arm of the A/A check (D4d)."""


def _as_dataflex(weight: Table) -> dict[str, object]:
    """DataFlex-RL keeps the advantages of the whole group after a selection (DF-3)."""
    if weight["actuator"] in ("max_variance", "group_top_k"):
        return {**weight, "renormalise": "group"}
    return (
        {**weight, "success": "above_half"}
        if weight["scorer"] == "group_solve_rate"
        else {**weight}
    )


def _presets() -> dict[str, Table]:
    weights = {**SELECTORS, **REWEIGHTERS}
    # Rows of the window are answers, a domain without any counts 0 (DF-5, DF-6, DF-8).
    of_snapshot = {"floor_as": "published", "by": "row", "unseen": "zero", "temperature": 1.0}
    as_published: dict[str, Table] = {
        "static": {"name": "static"},
        "reward_gap": {"name": "reward_gap", **of_snapshot},
        "dump_ucb": {"name": "dump_ucb", "reads": "reward", "c": 0.0, **of_snapshot},
        "tscl": {"name": "tscl", "reads": "reward", **of_snapshot},
    }
    found: dict[str, Table] = {"uniform": {}, "dataflex:uniform": {}}
    found |= {name: {"weight": dict(weight)} for name, weight in weights.items()}
    found |= {name: {"mixer": name} for name in MIXERS}
    found |= {
        f"strength:{n}": {"weight": {**SELECTORS["difffilter"], **s}} for n, s in STRENGTHS.items()
    }
    found |= {
        f"strength:{n}": {"weight": {**SELECTORS["topk"], "fraction": f}}
        for n, f in FRACTIONS.items()
    }
    found["identity"] = IDENTITY
    found |= {f"dataflex:{n}": {"weight": _as_dataflex(w)} for n, w in weights.items()}
    found |= {f"dataflex:{name}": {"mixer": mixer} for name, mixer in as_published.items()}
    found |= {name: {"advantage": name} for name in ADVANTAGES}
    found |= {name: {"advantage": {"name": name, **NOISE_RATES}} for name in ("pgbc", "pgfc")}
    found["noise_control"] = {"advantage": "noise_control"}
    found["dapo"] = {"admit": ("dynamic_sampling",), "mask": ("overlong_filter",)}
    found |= {f"spurious:{name}": {"reward": (name,)} for name in SPURIOUS if name != "inverted"}
    found["spurious:inverted"] = {"reward": ("verified", "inverted")}
    for name, weight in SELECTORS.items():
        for scope in ("batch", "group"):
            found[f"matched_{scope}:{name}"] = {
                "weight": {"name": "matched_random", "scope": scope, "of": dict(weight)}
            }
        for by in ("tokens", "rollouts"):
            found[f"matched_{by}:{name}"] = {
                "weight": {"name": f"matched_{by}", "of": dict(weight)}
            }
    return found


PRESETS: Mapping[str, Table] = _presets()


def resolve(settings: S) -> S:
    """The settings with their preset filled in; what they state themselves takes precedence."""
    if settings.preset is None:
        return settings
    if settings.preset not in PRESETS:
        raise BadConfiguration(
            f"policy.preset {settings.preset!r}: expected one of {', '.join(sorted(PRESETS))}"
        )
    stated = {name: getattr(settings, name) for name in settings.model_fields_set}
    return type(settings).model_validate({**PRESETS[settings.preset], **stated})
