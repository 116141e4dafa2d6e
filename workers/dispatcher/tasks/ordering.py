"""Sorting a few distinct letters: `dbgca>` -> `abcdg`."""

import math
import string

from workers.dispatcher.items import Problem


class Ordering:
    """Every arrangement of `length` of the first `letters` letters of the alphabet."""

    VERSION = "1"

    def __init__(self, *, length: int = 5, letters: int = 10) -> None:
        if not 2 <= length <= 10 or not length <= letters <= 26:
            raise ValueError(
                f"length = {length}, letters = {letters}: expected 2 <= length <= letters <= 26 "
                "and length <= 10"
            )
        self._length = length
        self._letters = string.ascii_lowercase[:letters]
        self.size = math.perm(letters, length)

    def problem(self, number: int) -> Problem:
        left = list(self._letters)
        chosen: list[str] = []
        for _ in range(self._length):
            number, place = divmod(number, len(left))
            chosen.append(left.pop(place))
        inversions = sum(
            chosen[i] > chosen[j] for i in range(self._length) for j in range(i + 1, self._length)
        )
        return Problem("".join(chosen) + ">", "".join(sorted(chosen)), difficulty=float(inversions))
