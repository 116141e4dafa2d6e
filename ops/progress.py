"""How a live run is shown: a plain line now and then, or a table that repaints itself on a terminal.

Both are drawn by pure functions from the ledger's view and what the processes say of themselves.
"""

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TextIO

from broker.bus import LogState
from broker.topology import Log
from ops.roles import ROLES
from ops.view import RunView

PLAIN_EVERY_S = 5.0


@dataclass(frozen=True)
class Pulse:
    """What the processes and logs said when last asked."""

    statuses: tuple[Mapping[str, Any], ...] = ()
    depths: Mapping[str, int] = field(default_factory=dict)
    """Role -> messages that wait for it."""
    stored: int = 0
    """Messages that the logs have ever held: grows while anything moves."""


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def number(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None else format(value, form)


def waited_for(pulse: Pulse) -> str:
    """Which role holds up the flow: the learner while it computes, else the one with the longest queue."""
    waits = waits_by_role(pulse.statuses)
    learner = next((found for role, found in waits.items() if "learner" in role), None)
    if not learner or learner[0].startswith(COMPUTES):
        return "learner"  # also while it starts, or is too busy to answer
    queues = {role: pulse.depths.get(role, 0) for role in ("policy", "verifier", "rollout")}
    longest = max(queues, key=lambda role: queues[role])
    return longest if queues[longest] else f"dispatcher (learner waits for {learner[0]})"


def silent_roles(statuses: Iterable[Mapping[str, Any]]) -> list[str]:
    """Roles that no process answered for."""
    heard = {role for status in statuses for role in str(status.get("role")).split(",")}
    return [role for role in ROLES if role not in heard]


def merged(
    before: Iterable[Mapping[str, Any]], now: Iterable[Mapping[str, Any]]
) -> tuple[Mapping[str, Any], ...]:
    """The newest word of each process."""
    return tuple({process_of(one): one for one in (*before, *now)}.values())


def process_of(status: Mapping[str, Any]) -> tuple[object, ...]:
    """Which process speaks."""
    return status.get("role"), status.get("host"), status.get("pid")


COMPUTES = ("model", "warm-up", "step", "checkpoint")
"""What the learner calls its own computations: a wait only for the event loop that started them."""


def waits_by_role(statuses: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for status in statuses:
        names = [str(wait["for"]) for wait in status.get("waits", ())]
        found.setdefault(str(status.get("role")), []).extend(names)
    return found


def warmup(pulse: Pulse) -> str:
    """How far the warm-up is, from the learner's own words."""
    for status in pulse.statuses:
        if "warmup_step" in status:
            loss = status.get("warmup_loss", "-")
            return f"warm-up step {status['warmup_step']}/{status['warmup_steps']}, loss {loss}"
    return "starting"


def queue_depths(
    states: Mapping[Log, LogState], statuses: Sequence[Mapping[str, Any]]
) -> dict[str, int]:
    """Role -> messages that wait for it; for the learner, windows.

    Rollout and verifier are counted by the server; policy and learner read by cursor and say
    themselves how far they are.
    """
    depths = {reader: n for state in states.values() for reader, n in state.pending.items()}
    said = {key: value for status in statuses for key, value in status.items()}
    idle = "verified groups" in waits_by_role(statuses).get("policy", ())
    if Log.VERIFIED in states and "verified_position" in said:
        # Its position passes over evaluations only when a training group comes: idle means 0.
        behind = states[Log.VERIFIED].last - int(said["verified_position"])
        depths["policy"] = 0 if idle else max(0, behind)
    if "window" in said and "step" in said:
        # The policy fills window w: those before it are closed, and each becomes a step.
        depths["learner"] = max(0, int(said["window"]) - 1 - int(said["step"]))
    return depths


def accuracies(view: RunView) -> str:
    """First and latest held-out accuracy of each benchmark."""
    parts = []
    for name, rounds in sorted(view.evaluations.items()):
        first, last = rounds[0].score, rounds[-1].score
        step = f" → {percent(last)}" if len(rounds) > 1 else ""
        parts.append(f"{name} {percent(first)}{step}")
    return ", ".join(parts)


def counts(view: RunView) -> str:
    reasons = ", ".join(f"{reason} {n}" for reason, n in view.dropped.most_common() if n)
    dropped = sum(view.dropped.values())
    return f"{view.trained_groups} trained, {dropped} dropped" + (
        f" ({reasons})" if reasons else ""
    )


def ending(view: RunView) -> str:
    behind = sum(view.recorder_behind().values())
    status = "" if view.ended is None else view.ended.status
    return f"ended ({status})" + (f"; the store has {behind} messages to write" if behind else "")


def plain_line(view: RunView, pulse: Pulse, *, steps: int, now_us: int) -> str:
    """One line that says how the run stands."""
    since = clock(view.running_s(now_us))
    if view.ready_us is None:
        return f"[{since}] {warmup(pulse)} · waiting for {waited_for(pulse)}"
    left = view.seconds_left(steps)
    parts = [f"[{since}] step {view.step}/{steps}"]
    if view.ended is not None:
        parts.append(ending(view))
    elif view.draining is not None:
        parts.append(f"draining: {view.draining}")
    elif left is not None:
        parts.append(f"{clock(left)} left")
    rewards = " ".join(
        f"{d} {number(view.reward(d))}" for d in view.domains() if view.reward(d) is not None
    )
    if rewards:
        parts.append(f"reward {rewards}")
    parts += [f"staleness ≤ {view.staleness_max}", f"groups {counts(view)}"]
    if (rate := view.samples_per_s()) is not None:
        parts.append(f"{rate:.3g} samples/s")
    parts.append("queues " + " ".join(f"{role} {depth}" for role, depth in pulse.depths.items()))
    if view.ended is None:
        parts.append(f"waiting for {waited_for(pulse)}")
    return " · ".join(parts)


class Display(Protocol):
    def show(self, view: RunView, pulse: Pulse, *, memory_bytes: int) -> None: ...

    def say(self, text: str) -> None:
        """A line that stays."""
        ...

    def close(self) -> None: ...


class PlainDisplay:
    """Lines, for logs and pipes: every few seconds, and at once after each evaluation."""

    def __init__(self, steps: int, out: TextIO, *, every_s: float = PLAIN_EVERY_S) -> None:
        self._steps, self._out, self._every_s = steps, out, every_s
        self._next = 0.0
        self._evaluations = 0

    def show(self, view: RunView, pulse: Pulse, *, memory_bytes: int) -> None:
        evaluations = sum(len(rounds) for rounds in view.evaluations.values())
        now = time.monotonic()
        if now < self._next and evaluations == self._evaluations:
            return
        if evaluations != self._evaluations:
            self.say(f"held-out accuracy: {accuracies(view)}")
        self._next, self._evaluations = now + self._every_s, evaluations
        self.say(plain_line(view, pulse, steps=self._steps, now_us=time.time_ns() // 1000))

    def say(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def close(self) -> None:
        pass


class LiveDisplay:
    """A table on a terminal, repainted in place."""

    def __init__(self, steps: int, title: str) -> None:
        from rich.console import Console
        from rich.live import Live

        self._steps, self._title = steps, title
        self._console = Console()
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)
        self._live.start()

    def show(self, view: RunView, pulse: Pulse, *, memory_bytes: int) -> None:
        from ops.live_table import render

        now_us = time.time_ns() // 1000
        table = render(
            view,
            pulse,
            steps=self._steps,
            title=self._title,
            now_us=now_us,
            memory_bytes=memory_bytes,
        )
        self._live.update(table)

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        self._live.stop()


def make_display(steps: int, title: str, out: TextIO = sys.stdout) -> Display:
    return LiveDisplay(steps, title) if out.isatty() else PlainDisplay(steps, out)


def limit(seconds: float | None) -> str:
    return "" if seconds is None else f" of {seconds:.0f}"


def role_lines(statuses: Iterable[Mapping[str, Any]]) -> list[str]:
    """One line a process: what it is, where, and what it waits for."""
    lines = []
    for status in sorted(statuses, key=lambda s: (str(s.get("role")), int(s.get("pid", 0)))):
        waits = [
            f"{wait['for']} ({wait['since_s']:.0f} s{limit(wait['limit_s'])})"
            for wait in status.get("waits", ())
        ]
        head = f"{status.get('role')} pid {status.get('pid')} on {status.get('host')}"
        what = f"waits for {', '.join(waits)}" if waits else "works"
        lines.append(f"{head}: {what}; last heartbeat {status.get('heartbeat_age_s')} s ago")
    return lines
