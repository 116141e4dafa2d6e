"""Errors that cross a boundary: each names the field or subject, the value, and what was expected."""


class SluiceError(Exception):
    """Base of all errors that a user may see as one line."""


class Retry(SluiceError):
    """The work may succeed later: hand the message back and redeliver it after `delay_s`."""

    def __init__(self, reason: str, *, delay_s: float = 1.0) -> None:
        super().__init__(reason)
        self.delay_s = delay_s


class Poison(SluiceError):
    """The message can never be handled: its group fails, a copy goes to DEAD."""


class Unasked(Poison):
    """Nobody asked for it: a copy goes to DEAD, and no group ends by it."""


class Conflict(SluiceError):
    """A compare-and-set publication was refused: somebody else wrote there first."""

    def __init__(self, subject: str, expected: int) -> None:
        super().__init__(
            f"{subject}: last sequence is not {expected}; another writer published first"
        )
        self.subject = subject
        self.expected = expected


class LogLost(SluiceError):
    """A log ends before what was read of it: the broker's host has lost what was not on its disk."""


class Replaced(SluiceError):
    """This process is no longer the single writer of its role and must exit."""


class Unreachable(SluiceError):
    """A service did not answer within its limit."""


class TooLong(SluiceError):
    """A wait reached its limit; the message says what was waited for."""


class BadConfiguration(SluiceError):
    """The configuration cannot work; the message names key, value and expectation."""
