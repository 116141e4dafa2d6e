"""Policy programs under a name. `dataflex:NAME` is what DataFlex-RL's published code does.

What the learner has to do for a method is not in here: DAPO's clip-higher and token-level loss are
the learner's defaults, Dr. GRPO wants `learner.denominator = "fixed"`.
"""

from collections.abc import Mapping

from broker.errors import BadConfiguration
from workers.policies.settings import PolicySettings

Table = Mapping[str, object]

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


def _whole_group(weight: Table) -> dict[str, object]:
    """DataFlex-RL keeps the advantages of the whole group after a selection (DF-3)."""
    subset = weight["actuator"] in ("max_variance", "group_top_k")
    return {**weight, "renormalise": "group"} if subset else dict(weight)


def _presets() -> dict[str, Table]:
    weights = {**SELECTORS, **REWEIGHTERS}
    as_published: dict[str, Table] = {
        "static": {"name": "static"},
        # A window of rows, about half a step, is nearest to one window (DF-6).
        "reward_gap": {"name": "reward_gap", "floor_as": "published", "window": 1},
        "dump_ucb": {
            "name": "dump_ucb", "reads": "reward", "c": 0.0, "floor_as": "published", "window": 1,
        },
        "tscl": {
            "name": "tscl", "reads": "reward", "temperature": 1.0, "floor_as": "published",
            "window": 1,
        },
    }  # fmt: skip
    found: dict[str, Table] = {"uniform": {}, "dataflex:uniform": {}}
    found |= {name: {"weight": dict(weight)} for name, weight in weights.items()}
    found |= {name: {"mixer": name} for name in MIXERS}
    found |= {f"dataflex:{n}": {"weight": _whole_group(w)} for n, w in weights.items()}
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
        found[f"matched_tokens:{name}"] = {"weight": {"name": "matched_tokens", "of": dict(weight)}}
    return found


PRESETS: Mapping[str, Table] = _presets()


def resolve(settings: PolicySettings) -> PolicySettings:
    """The settings with their preset filled in; what they state themselves takes precedence."""
    if settings.preset is None:
        return settings
    if settings.preset not in PRESETS:
        raise BadConfiguration(
            f"policy.preset {settings.preset!r}: expected one of {', '.join(sorted(PRESETS))}"
        )
    stated = {name: getattr(settings, name) for name in settings.model_fields_set}
    return PolicySettings.model_validate({**PRESETS[settings.preset], **stated})
