"""Shadow policies: decided over what the live one is given, recorded beside it, never trained on.

A shadow's window is all groups that were seen for a live window, whatever the live policy did with
them: the same batch as `sluice replay --policy` and `sluice policy simulate` decide about. Its state
is its memory alone, since nothing of a window is left once it is closed.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from broker.errors import BadConfiguration
from broker.messages import Annotation, Json
from workers.policies.annotate import annotate_dropped
from workers.policies.group import Group
from workers.policies.judged import Judged
from workers.policies.order import Arrival
from workers.policies.program import Memory, Program
from workers.policies.settings import PolicySettings, ShadowSettings


@dataclass(frozen=True, eq=False)
class Opinion:
    """What a shadow says of one group."""

    arrival: Arrival
    reason: str
    """Why it would be dropped; `admitted` when it would not."""
    annotations: tuple[Annotation, ...]


@dataclass(frozen=True, eq=False)
class Shadowed:
    """What a shadow says of the groups seen for a window, in the order in which they were decided."""

    policy: str
    policy_version: str
    window: int
    opinions: tuple[Opinion, ...]


@dataclass
class Shadow:
    """One policy with its memory, and what it has judged since the last window."""

    name: str
    program: Program
    memory: Memory = field(default_factory=dict[str, Json])
    open: list[tuple[Arrival, Judged]] = field(default_factory=list[tuple[Arrival, Judged]])

    def judge(self, unit: Sequence[tuple[Arrival, Group]]) -> None:
        """Groups that live and end together."""
        judged = [(arrival, self.program.judge(group, self.memory)) for arrival, group in unit]
        self.open += bundled(judged)

    def close(self, window: int) -> Shadowed:
        judged, self.open = self.open, []
        found = decide(self.program, [j for _, j in judged], window, self.memory)
        return Shadowed(
            self.name,
            self.program.version,
            window,
            tuple(
                Opinion(arrival, j.reason or "admitted", rows)
                for (arrival, j), rows in zip(judged, found, strict=True)
            ),
        )


def bundled(judged: Sequence[tuple[Arrival, Judged]]) -> list[tuple[Arrival, Judged]]:
    """One dropped member ends its bundle: the others are dropped as `bundle`."""
    if not any(j.reason for _, j in judged):
        return list(judged)
    return [(arrival, j if j.reason else j.dropped("bundle")) for arrival, j in judged]


def decide(
    program: Program, judged: Sequence[Judged], window: int, memory: Memory
) -> list[tuple[Annotation, ...]]:
    """Annotations of judged groups, in their order: the admitted ones as a window, the others as dropped."""
    admitted = [j for j in judged if not j.reason]
    rows = iter(program.decide(admitted, window, memory).annotations if admitted else ())
    return [annotate_dropped(j, j.reason) if j.reason else next(rows) for j in judged]


def build(
    settings: PolicySettings, *, measured: frozenset[str] = frozenset()
) -> tuple[Shadow, ...]:
    """The shadows of a configuration. BadConfiguration as for the live policy."""
    found = [_build(table, measured) for table in settings.shadow]
    names = [name for name, _ in found]
    if len(set(names)) != len(names):
        raise BadConfiguration(
            f"policy.shadow names {', '.join(names)}: expected each once; `name` tells like ones apart"
        )
    return tuple(Shadow(name, program) for name, program in found)


def _build(settings: ShadowSettings, measured: frozenset[str]) -> tuple[str, Program]:
    program = Program(settings, measured)
    if program.mixer.table.get("name") != "static":
        raise BadConfiguration(
            f"policy.shadow mixer {program.mixer.name!r}: expected static, since samples are drawn by "
            "the live policy's mixture and answer no other"
        )
    # A subject's word has no colons, slashes or dots.
    return settings.name or re.sub(r"[^A-Za-z0-9_-]", "-", program.name), program
