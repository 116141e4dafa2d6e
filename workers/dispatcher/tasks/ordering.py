"""Sorting a word's letters, which may repeat: `dbgcab>` -> `abbcdg`."""

import string

from workers.dispatcher.items import Problem


class Ordering:
    """Every word of `length` of the first `letters` letters of the alphabet.

    With repeated letters it is not enough to name the next letter that occurs: copies count.
    """

    VERSION = "1"

    def __init__(self, *, length: int = 8, letters: int = 10) -> None:
        if not 2 <= length <= 12 or not 2 <= letters <= 26:
            raise ValueError(
                f"length = {length}, letters = {letters}: expected 2 <= length <= 12 "
                "and 2 <= letters <= 26"
            )
        self._length = length
        self._letters = string.ascii_lowercase[:letters]
        self.size = letters**length

    def problem(self, number: int) -> Problem:
        chosen: list[str] = []
        for _ in range(self._length):
            number, place = divmod(number, len(self._letters))
            chosen.append(self._letters[place])
        inversions = sum(
            chosen[i] > chosen[j] for i in range(self._length) for j in range(i + 1, self._length)
        )
        return Problem("".join(chosen) + ">", "".join(sorted(chosen)), difficulty=float(inversions))
