"""Appeals: a second verifier looks again at a share of what a rule calls wrong; the rule's score stands.

What it says is told as the component `appeal`, 1 for right after all and 0 for wrong, from which the
advantages `pgbc_appeals` and `pgfc_appeals` estimate what the rule misses (arXiv:2510.00915).
"""

import hashlib
from dataclasses import replace
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from broker.messages import Json
from workers.verifiers import registry
from workers.verifiers.protocol import Finding, Verifier

RIGHT = 1.0


class Appeals(Verifier):
    """Score, answer and detail of `rule`; of wrong ones a share, the same every time, go to `second` too."""

    version: ClassVar[str] = "1"

    rule: str | Json
    second: str | Json
    share: Annotated[float, Field(gt=0, le=1)]
    """The advantage must state the same."""

    @model_validator(mode="after")
    def _both_are_known(self) -> Self:
        for verifier in (self.rule, self.second):
            registry.build(verifier)
        return self

    def ready(self) -> None:
        self._rule.ready()
        self._second.ready()

    def prepare(self) -> None:
        self._rule.prepare()
        self._second.prepare()

    def program_bytes(self) -> int:
        return max(self._rule.program_bytes(), self._second.program_bytes())

    def alone_s(self) -> float:
        return self._rule.alone_s() + self._second.alone_s()

    def check(self, target: str | None, item: Json) -> None:
        self._rule.check(target, item)
        self._second.check(target, item)

    def pays_partly(self) -> bool:
        return self._rule.pays_partly()

    def stated(self, target: str, item: Json) -> str | None:
        return self._rule.stated(target, item)

    def same(self, left: str, right: str, item: Json) -> bool | None:
        return self._rule.same(left, right, item)

    def grade(self, response: str, target: str | None, item: Json) -> Finding:
        finding = self._rule.grade(response, target, item)
        if finding.score is None or finding.score >= RIGHT or not self._is_heard(response, target):
            return finding
        again = self._second.grade(response, target, item)
        # An appeal that cannot be judged is none: it says nothing about the rule.
        if again.score is None:
            return finding
        appeal = float(again.score >= RIGHT)
        return replace(finding, components={**finding.components, "appeal": appeal})

    def _is_heard(self, response: str, target: str | None) -> bool:
        digest = hashlib.sha256(f"{target}\0{response}".encode()).digest()
        return int.from_bytes(digest[:8], "big") < self.share * 2**64

    @property
    def _rule(self) -> Verifier:
        return registry.build(self.rule)

    @property
    def _second(self) -> Verifier:
        return registry.build(self.second)
