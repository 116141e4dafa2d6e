r"""The answer format of GSM8K: worked steps with `<<48/2=24>>` annotations, gold after `#### `.

The annotations are for calculators and leave the text; the gold moves into `\boxed{}`, the form
in which answers are graded.
"""

import re

ANNOTATION = re.compile(r"<<[^<>]*>>")
MARK = "####"


def parse_answer(text: str) -> tuple[str, str, int]:
    r"""(gold, worked solution ending in \boxed{gold}, number of steps).

    Thousands separators leave the gold. Raises ValueError when there is not exactly one mark
    with something behind it.
    """
    worked, mark, gold = text.partition(MARK)
    gold = gold.strip().replace(",", "")
    if not mark or not gold or MARK in gold:
        raise ValueError(f"answer {text[-40:]!r}: expected one `{MARK} gold` at its end")
    steps = [line.strip() for line in worked.splitlines() if line.strip()]
    solution = "\n".join([*(ANNOTATION.sub("", line) for line in steps), rf"\boxed{{{gold}}}"])
    return gold, solution, len(steps)
