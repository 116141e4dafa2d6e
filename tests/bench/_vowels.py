"""The reward of the e2e benchmarks: cheap, and hardly ever the same for all answers of a group."""

from broker.messages import Json
from workers.verifiers.protocol import Finding, Verifier, judged

WANTED = frozenset("aeiou02468")


def share(response: str) -> float:
    """Of characters that are vowels or even digits."""
    return sum(c in WANTED for c in response) / max(len(response), 1)


class Vowels(Verifier):
    def pays_partly(self) -> bool:
        return True

    def grade(self, response: str, target: str | None, item: Json) -> Finding:
        return judged(share(response), response, None)
