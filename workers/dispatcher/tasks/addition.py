"""Addition of two numbers, the digits of the sum reversed: `47+85=` -> `231`."""

from workers.dispatcher.items import Problem


class Addition:
    """Reversed, since the carry runs from the last digit to the first."""

    VERSION = "1"

    def __init__(self, *, digits: int = 2) -> None:
        if not 1 <= digits <= 5:
            raise ValueError(f"digits = {digits}: expected 1..5")
        self._low = 10 ** (digits - 1) if digits > 1 else 0
        self._span = 10**digits - self._low
        self.size = self._span**2

    def problem(self, number: int) -> Problem:
        left, right = (self._low + part for part in divmod(number, self._span))
        answer = str(left + right)[::-1]
        return Problem(f"{left}+{right}=", answer, difficulty=float(carries(left, right)))


def carries(left: int, right: int) -> int:
    """How many columns carry into the next."""
    count = carry = 0
    while left or right:
        carry = (left % 10 + right % 10 + carry) // 10
        count += carry
        left, right = left // 10, right // 10
    return count
