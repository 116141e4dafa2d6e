"""Steps: the share of stated equations that hold. What is not an equation is not counted.

Only the first `max_steps` equations count, so that padding with true ones does not pay; needs no target.
"""

import re
from typing import Annotated, ClassVar

from pydantic import Field

from broker.messages import Json
from workers.verifiers.mathtext.evaluate import equal
from workers.verifiers.mathtext.normal import clean
from workers.verifiers.mathtext.parser import parse
from workers.verifiers.mathtext.rational import Undefined
from workers.verifiers.mathtext.tree import Node, TooLarge, Unreadable, symbols
from workers.verifiers.protocol import Canary, Finding, Verifier, judged, no_answer

_SEGMENT = re.compile(r"[;\n]|(?<!\d)\.|\.(?!\d)")
_SIDE = r"[-+*/^().,\d\s×÷·−%$]+"
_EQUATION = re.compile(rf"(?<![\w=])({_SIDE}(?:={_SIDE})+)")
SEGMENT_CHARS = 300
RESPONSE_CHARS = 20_000


class Steps(Verifier):
    """Process score: equations of numbers (`2+3=5`) that are true, over all that are stated."""

    version: ClassVar[str] = "1"
    canaries: ClassVar = (Canary("2+3=5; 5*4=21", "", 0.5), Canary("2+3=5; 5*4=20", "", 1.0))

    max_steps: Annotated[int, Field(ge=1)] = 32

    def pays_partly(self) -> bool:
        return True

    def grade(self, response: str, target: str | None, item: Json) -> Finding:
        verdicts: list[bool] = []
        for segment in _SEGMENT.split(response[:RESPONSE_CHARS]):
            for equation in _EQUATION.finditer(segment[:SEGMENT_CHARS]):
                holds = _holds(equation.group().split("="))
                if holds is not None:
                    verdicts.append(holds)
        counted = verdicts[: self.max_steps]
        if not counted:
            return no_answer("no equation")
        detail = f"{sum(counted)} of {len(counted)} equations hold"
        return judged(sum(counted) / len(counted), None, None, detail)


def _holds(sides: list[str]) -> bool | None:
    """Whether all sides have one value; None when a side is no arithmetic."""
    if not all(any(c.isdigit() for c in side) for side in sides):
        return None
    try:
        trees: list[Node] = [parse(clean(side)) for side in sides]
        if any(symbols(tree) for tree in trees):
            return None
        return all(equal(trees[0], tree) for tree in trees[1:])
    except Unreadable:
        return None
    except (Undefined, TooLarge):
        return False
