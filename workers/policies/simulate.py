"""What a policy would decide about groups given as JSON lines: no run, no log, the same program.

A line is a group: `{group_id, domain, rewards, tokens, logprobs?, answers?, sample_key?, levels?, step?,
window?}`, with a value per generation in the arrays. Lines of one window are decided as one batch, in
the order of the file; windows in the order in which they first appear. Memory is carried along.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from broker.arrays import unpack
from broker.errors import BadConfiguration
from broker.messages import Annotation
from workers.policies.group import SUCCESS, Group
from workers.policies.judged import Judged
from workers.policies.program import Memory, Program
from workers.policies.shadows import decide

Row = dict[str, object]
OPTIONAL = {"logprobs": "logprob", "answers": "answer"}
"""Field of a line -> the signal that it provides."""


MOST_TOKENS = 10_000_000
"""Of one answer; each takes memory here."""


class Line(BaseModel):
    """One group of the input."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=True)

    group_id: str
    domain: str
    rewards: list[float | None]
    """Raw scores; null, NaN and infinity leave the row out."""
    tokens: list[Annotated[int, Field(le=MOST_TOKENS)]]
    """How many each answer has."""
    logprobs: list[list[float]] | None = None
    """Of the sampled tokens."""
    answers: list[str | None] | None = None
    """Canonical answers; null where none was found."""
    sample_key: str | None = None
    """What histories are joined by; the group's id without one."""
    levels: list[float] | float | None = None
    """Difficulty of the sample; the first of several counts."""
    step: int = 0
    """The sample's visit: seeded choices differ between visits."""
    window: int | str | None = None

    @property
    def difficulty(self) -> float | None:
        if isinstance(self.levels, list):
            return self.levels[0] if self.levels else None
        return self.levels


def read_line(text: str, number: int) -> Line:
    """BadConfiguration names line, field, value and expectation."""
    try:
        line = Line.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "(whole)"
        what = first["msg"]
        if first["type"] == "extra_forbidden":
            what = f"no such field; expected some of {', '.join(Line.model_fields)}"
        raise BadConfiguration(
            f"line {number}: {where}: {what} (got {first['input']!r:.80})"
        ) from error
    for field in ("tokens", "logprobs", "answers"):
        values = getattr(line, field)
        if values is not None and len(values) != len(line.rewards):
            raise BadConfiguration(
                f"line {number}: {field}: expected {len(line.rewards)} values, as rewards has; "
                f"got {len(values)}"
            )
    for row, (tokens, given) in enumerate(zip(line.tokens, line.logprobs or (), strict=False)):
        if tokens != len(given):
            raise BadConfiguration(
                f"line {number}: logprobs.{row}: expected {tokens} values, as tokens says; "
                f"got {len(given)}"
            )
    if min(line.tokens, default=0) < 0:
        raise BadConfiguration(f"line {number}: tokens: expected none negative; got {line.tokens}")
    return line


def refuse_missing(program: Program, lines: Sequence[Line]) -> None:
    """BadConfiguration when the policy reads a field that a line does not have."""
    for field, signal in OPTIONAL.items():
        without = next((line for line in lines if getattr(line, field) is None), None)
        if signal in program.reads and without is not None:
            raise BadConfiguration(
                f"group {without.group_id}: {field}: expected, since policy {program.name} reads the {signal}"
            )


def to_group(line: Line) -> Group:
    size = len(line.rewards)
    rewards = [np.nan if r is None else r for r in line.rewards]
    outcomes_G = np.array(rewards, dtype=np.float64)
    logprobs = tuple(
        np.array(given, dtype=np.float32)
        for given in (line.logprobs or [[0.0] * tokens for tokens in line.tokens])
    )
    sound = [bool(len(lp)) and bool(np.isfinite(lp).all()) for lp in logprobs]
    answers = tuple(line.answers or [None] * size)
    numbers = {answer: n for n, answer in enumerate(dict.fromkeys(a for a in answers if a))}
    return Group(
        group_id=line.group_id,
        domain=line.domain,
        sample_key=line.sample_key or line.group_id,
        difficulty=line.difficulty,
        visit=line.step,
        attempt=0,
        success=SUCCESS,
        indices=tuple(range(size)),
        outcomes_G=np.where(np.isfinite(outcomes_G), outcomes_G, np.nan),
        scores_G=np.where(np.isfinite(outcomes_G), outcomes_G, np.nan),
        sound_G=np.array(sound, dtype=bool),
        lengths_G=np.array(line.tokens, dtype=np.int64),
        truncated_G=np.zeros(size, dtype=bool),
        classes_G=np.array([numbers[a] if a else -1 for a in answers], dtype=np.int64),
        answers=answers,
        components=tuple({} for _ in range(size)),
        logprobs=logprobs,
        target=None,
        signals=tuple({} for _ in range(size)),
    )


def simulate(program: Program, lines: Sequence[Line]) -> Iterator[Row]:
    """A row per generation, window by window."""
    refuse_missing(program, lines)
    windows: dict[int | str | None, list[Group]] = {}
    for line in lines:
        windows.setdefault(line.window, []).append(to_group(line))
    memory: Memory = {}
    for number, groups in enumerate(windows.values(), start=1):
        judged = [program.judge(group, memory) for group in groups]
        yield from _rows(judged, decide(program, judged, number, memory))


def _rows(judged: Iterable[Judged], annotations: Iterable[Sequence[Annotation]]) -> Iterator[Row]:
    for one, rows in zip(judged, annotations, strict=True):
        yield from (row_of(one.group.group_id, annotation) for annotation in rows)


def row_of(group_id: str, found: Annotation) -> Row:
    """One generation's decision as it is printed."""
    weight: object = found.weight
    if found.token_weights is not None:
        weight = [round(float(w), 9) for w in found.weight * unpack(found.token_weights)]
    return {
        "group_id": group_id,
        "index": found.index,
        "admitted": found.admitted,
        "reward": found.reward,
        "advantage": found.advantage,
        "weight": weight,
        "target": found.target,
        "reason": found.reason,
    }


def parse(texts: Iterable[str]) -> list[Line]:
    """The lines of a file; empty ones are passed over, group ids must be distinct."""
    found: list[Line] = []
    seen: dict[str, int] = {}
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            continue
        line = read_line(text, number)
        if line.group_id in seen:
            raise BadConfiguration(
                f"line {number}: group_id {line.group_id!r}: expected each group once; "
                f"it is on line {seen[line.group_id]} too"
            )
        seen[line.group_id] = number
        found.append(line)
    return found
