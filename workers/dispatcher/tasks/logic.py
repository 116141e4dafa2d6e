"""Boolean functions of three words of bits: `10110?01100:11001=` -> `01101`.

`a?b:c` takes each bit from b where a has a 1 and from c where it has a 0; `a#b#c` takes the
majority. Both give every answer equally often, and copying any one word gets a bit right only
three times in four.
"""

from workers.dispatcher.items import Problem


class Logic:
    """Either function on words of `width` bits."""

    VERSION = "1"

    def __init__(self, *, width: int = 5, functions: str = "?#") -> None:
        if not 2 <= width <= 6:
            raise ValueError(f"width = {width}: expected 2..6")
        if functions not in ("?", "#", "?#"):
            raise ValueError(f"functions = {functions!r}: expected ?, # or ?#")
        self._width = width
        self._words = 2**width
        self._functions = functions
        self.size = len(functions) * self._words**3

    def problem(self, number: int) -> Problem:
        number, third = divmod(number, self._words)
        number, second = divmod(number, self._words)
        function, first = divmod(number, self._words)
        if self._functions[function] == "?":
            answer, signs, difficulty = (first & second) | (~first & third), "?:", 1.0
        else:
            majority = (first & second) | (first & third) | (second & third)
            answer, signs, difficulty = majority, "##", 2.0
        words = [self._bits(word) for word in (first, second, third)]
        prompt = f"{words[0]}{signs[0]}{words[1]}{signs[1]}{words[2]}="
        return Problem(prompt, self._bits(answer), difficulty=difficulty)

    def _bits(self, word: int) -> str:
        return f"{word & (self._words - 1):0{self._width}b}"
