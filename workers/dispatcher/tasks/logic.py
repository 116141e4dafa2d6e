"""Boolean algebra on short words of bits: `!(1011&0110)^1001=` -> `0100`.

The last operation is exclusive or with a free word, so every answer is equally frequent and
guessing pays 1 in 2^width, whatever the operators.
"""

from workers.dispatcher.items import Problem


class Logic:
    """`(x op y)^z` with op one of & and |, plain or negated."""

    VERSION = "1"

    def __init__(self, *, width: int = 4) -> None:
        if not 2 <= width <= 6:
            raise ValueError(f"width = {width}: expected 2..6")
        self._width = width
        self._words = 2**width
        self.size = 4 * self._words**3

    def problem(self, number: int) -> Problem:
        form, rest = divmod(number, self._words**3)
        left, rest = divmod(rest, self._words**2)
        right, last = divmod(rest, self._words)
        negated, disjunction = divmod(form, 2)
        inner = left | right if disjunction else left & right
        inner ^= (self._words - 1) * negated
        operator = "|" if disjunction else "&"
        expression = f"{'!' * negated}({self._bits(left)}{operator}{self._bits(right)})"
        prompt = f"{expression}^{self._bits(last)}="
        return Problem(prompt, self._bits(inner ^ last), difficulty=2.0 + negated)

    def _bits(self, word: int) -> str:
        return f"{word:0{self._width}b}"
