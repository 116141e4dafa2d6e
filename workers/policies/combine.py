"""A scorer and an actuator as one weight method; a pair that does not fit is refused at the start."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from broker.errors import BadConfiguration
from workers.policies.actuators import ACTUATORS, Actuator
from workers.policies.batch import Batch
from workers.policies.registry import Named, Registry
from workers.policies.scorers import SCORERS, Scorer
from workers.policies.weights import WEIGHTS, Weight, Weights


class Scored:
    """Scores a window and acts on the scores."""

    def __init__(self, scorer: Named[Scorer], actuator: Named[Actuator]) -> None:
        self.scorer, self.actuator = scorer, actuator
        self.needs = scorer.reads | actuator.reads

    def __call__(self, batch: Batch, advantages_B: np.ndarray) -> Weights:
        scores = self.scorer.method(batch, advantages_B)
        if isinstance(scores, np.ndarray):
            read_B = scores
        else:
            sums = [np.add.reduce(scores_T) for scores_T in scores]
            read_B = np.array(sums) / np.where(batch.lengths_B > 0, batch.lengths_B, np.nan)
        # A row without a score must not poison the others' weights: it is left out (P1).
        scored_B = np.isfinite(read_B) | ~batch.usable_B
        if not scored_B.all():
            batch = replace(batch, usable_B=batch.usable_B & scored_B)
        weights = self.actuator.method(batch, scores, advantages_B)
        return Weights(
            rows_B=np.where(scored_B, weights.rows_B, np.nan),
            tokens=weights.tokens,
            advantages_B=weights.advantages_B,
            signals={self.scorer.name: read_B, **weights.signals},
        )


def build_weight(spec: str | Mapping[str, object]) -> Named[Weight]:
    """A weight by name, or `{scorer, actuator, options of both}`."""
    if isinstance(spec, str) or "scorer" not in spec:
        return WEIGHTS.build(spec)
    table = dict(spec)
    scorer_name, actuator_name = table.pop("scorer"), table.pop("actuator", None)
    if not isinstance(actuator_name, str) or not isinstance(scorer_name, str):
        raise BadConfiguration(f"policy.weight {spec!r}: expected a scorer and an actuator by name")
    of_scorer = _options(SCORERS, scorer_name) & set(table)
    scorer = SCORERS.build({"name": scorer_name, **{k: table[k] for k in of_scorer}})
    rest = {k: v for k, v in table.items() if k not in of_scorer}
    actuator = ACTUATORS.build({"name": actuator_name, **rest})
    grain, accepts = scorer.method.grain, actuator.method.accepts
    if grain not in accepts:
        raise BadConfiguration(
            f"policy.weight: scorer {scorer_name!r} scores each {grain}, "
            f"actuator {actuator_name!r} acts on scores of each {' or '.join(sorted(accepts))}"
        )
    name = f"{scorer.name}-{actuator.name}"
    return Named(
        name, Scored(scorer, actuator), {"scorer": scorer.table, "actuator": actuator.table}
    )


def _options(registry: Registry[Scorer], name: str) -> set[str]:
    return set(getattr(registry.find(name), "model_fields", {}))
