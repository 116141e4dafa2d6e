"""Compose: several verifiers on one answer, as a weighted sum, or with a gate that multiplies.

A part that fails makes the whole a verifier_error, and an ungradable part makes it ungradable: weights are
never renormalised silently. The answer is that of the first part that extracts one.
"""

import math
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from broker.messages import Json
from broker.settings import Settings
from workers.verifiers import registry
from workers.verifiers.protocol import Finding, Verifier, shares_sum


class Part(Settings):
    """One verifier and its share."""

    verifier: str | Json
    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """None for all parts: equal shares."""
    gate: bool = False
    """Its score multiplies the sum of the others instead of adding to it; it has no weight."""


class Compose(Verifier):
    """Score = product of the gates' scores x weighted sum of the others'. Weights sum to 1."""

    version: ClassVar[str] = "2"

    parts: Annotated[tuple[Part, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _weights_are_shares(self) -> Self:
        for part in self.parts:
            registry.build(part.verifier)
        weights = [part.weight for part in self.parts if not part.gate]
        if not weights:
            raise ValueError("parts: expected at least one that is no gate")
        if any(part.gate and part.weight is not None for part in self.parts):
            raise ValueError("parts: a gate multiplies and has no weight")
        stated = [weight for weight in weights if weight is not None]
        if stated and (len(stated) != len(weights) or not math.isclose(sum(stated), 1.0)):
            raise ValueError(f"parts: weights {weights}: expected all stated, with sum 1")
        return self

    def ready(self) -> None:
        for part in self.parts:
            registry.build(part.verifier).ready()

    def prepare(self) -> None:
        for part in self.parts:
            registry.build(part.verifier).prepare()

    def program_bytes(self) -> int:
        return max(registry.build(part.verifier).program_bytes() for part in self.parts)

    def alone_s(self) -> float:
        return sum(registry.build(part.verifier).alone_s() for part in self.parts)

    def check(self, target: str | None, item: Json) -> None:
        for part in self.parts:
            registry.build(part.verifier).check(target, item)

    def pays_partly(self) -> bool:
        return True

    def grade(self, response: str, target: str | None, item: Json) -> Finding:
        findings = [
            registry.build(part.verifier).grade(response, target, item) for part in self.parts
        ]
        answer = next((f for f in findings if f.extracted is not None), None)
        extracted = answer.extracted if answer else None
        answer_key = answer.answer_key if answer else None
        components: dict[str, float] = {}
        paid: list[float] = []
        gate = 1.0
        equal = 1.0 / sum(not part.gate for part in self.parts)
        for name, part, finding in zip(self._names(), self.parts, findings, strict=True):
            if finding.score is None:
                detail = f"{name}: {finding.detail}"
                return Finding(finding.status, None, extracted, answer_key, detail)
            if not 0.0 <= finding.score <= 1.0:
                detail = f"{name}: score {finding.score}"
                return Finding("verifier_error", None, extracted, answer_key, detail)
            components[name] = finding.score
            if part.gate:
                gate *= finding.score
            else:
                paid.append(finding.score * (equal if part.weight is None else part.weight))
        detail = "; ".join(
            f"{n}: {f.detail}" for n, f in zip(components, findings, strict=True) if f.detail
        )
        score = gate * shares_sum(paid)
        return Finding("ok", score, extracted, answer_key, detail, components)

    def same(self, left: str, right: str, item: Json) -> bool | None:
        """By the first part that knows an equivalence."""
        for part in self.parts:
            verifier = registry.build(part.verifier)
            if type(verifier).same is not Verifier.same:
                return verifier.same(left, right, item)
        return False

    def _names(self) -> list[str]:
        """Component names: the verifier's, numbered when it occurs again."""
        names: list[str] = []
        for part in self.parts:
            name = str(registry.normalised(part.verifier)["name"]).rpartition("/")[2]
            again = sum(n == name or n.startswith(f"{name}#") for n in names)
            names.append(f"{name}#{again + 1}" if again else name)
        return names
