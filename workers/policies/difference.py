"""How two policies differ over the same groups: what each keeps, and where they agree."""

from collections.abc import Iterable
from dataclasses import dataclass

from broker.messages import Annotation
from workers.policies.replay import Verdicts


@dataclass
class Difference:
    """One line of the table; shares are of answers."""

    part: str
    """`all`, or which domain, difficulty or share of solved answers the line is about."""
    groups: int = 0
    answers: int = 0
    tokens: int = 0
    recorded_kept: int = 0
    other_kept: int = 0
    recorded_tokens: int = 0
    other_tokens: int = 0
    agreeing: int = 0
    """Answers that both keep or neither does."""

    def add(self, one: Verdicts) -> None:
        recorded, other = _kept(one.recorded), _kept(one.other)
        self.groups += 1
        for answer in one.event.generations:
            tokens, before, now = (
                len(answer.token_ids), answer.index in recorded, answer.index in other,
            )  # fmt: skip
            self.answers += 1
            self.tokens += tokens
            self.recorded_kept += before
            self.other_kept += now
            self.recorded_tokens += tokens * before
            self.other_tokens += tokens * now
            self.agreeing += before == now

    def row(self) -> dict[str, object]:
        """As it is printed."""
        answers = max(self.answers, 1)
        return {
            "part": self.part,
            "groups": self.groups,
            "answers": self.answers,
            "recorded_kept": self.recorded_kept / answers,
            "other_kept": self.other_kept / answers,
            "recorded_tokens": self.recorded_tokens,
            "other_tokens": self.other_tokens,
            "agreement": self.agreeing / answers,
        }


def _kept(annotations: Iterable[Annotation]) -> set[int]:
    """Answers that weigh in the loss."""
    return {a.index for a in annotations if a.admitted and a.weight > 0}


class Table:
    """All groups, then by domain, by difficulty where the dataset states one, and by share solved."""

    def __init__(self) -> None:
        self._lines: dict[str, Difference] = {"all": Difference("all")}

    def add(self, one: Verdicts) -> None:
        parts = ["all", f"domain {one.event.group.domain}", f"solved {_solved(one)}"]
        difficulty = _difficulty(one)
        if difficulty is not None:
            parts.append(f"difficulty {difficulty:g}")
        for part in parts:
            self._lines.setdefault(part, Difference(part)).add(one)

    def rows(self) -> list[dict[str, object]]:
        return [self._lines[part].row() for part in sorted(self._lines, key=_place)]


def _place(part: str) -> tuple[int, str]:
    return ["all", "domain", "difficulty", "solved"].index(part.split(" ")[0]), part


def _difficulty(one: Verdicts) -> float | None:
    return one.event.request.sample.difficulty if one.event.request else None


def _solved(one: Verdicts) -> str:
    rate = one.other[0].signals.get("solve_rate", 0.0) if one.other else 0.0
    if rate in (0.0, 1.0):
        return f"{rate:.0%}"
    return "below 50%" if rate < 0.5 else "50% and above"
