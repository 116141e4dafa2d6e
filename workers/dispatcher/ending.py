"""When a run stops drawing, and when it is over. Pure.

Draining overrides every pause; the reason says what happened, with counts.
"""

from dataclasses import dataclass
from typing import Literal

from broker.settings import RunSettings
from workers.dispatcher.state import Silence, State

Status = Literal["finished", "stopped", "no_progress", "failed"]
UNCOMMITTED_FACTOR = 10
"""A step in training or a window that waits for it may take this many times drain_wait_s."""


@dataclass(frozen=True)
class Ending:
    """Why a run drains, in the form in which RunDraining carries it."""

    status: Status
    detail: str

    def __str__(self) -> str:
        return f"{self.status}: {self.detail}"

    @classmethod
    def parse(cls, reason: str) -> "Ending":
        status, _, detail = reason.partition(": ")
        for known in ("finished", "stopped", "no_progress"):
            if status == known:
                return cls(known, detail)
        return cls("failed", reason)


def why_drain(state: State, run: RunSettings, *, exhausted: bool) -> Ending | None:
    """The reason to ask for no more training groups; None while there is none.

    exhausted: no source has a sample left and no retry is due.
    """
    if state.step >= run.steps:
        return Ending("finished", f"{state.step} steps committed")
    if state.life.stop_requested:
        return Ending("stopped", f"asked to stop after {state.step} steps")
    if exhausted:
        # Now, not when all have ended: the last ones may wait in a window that only draining closes.
        return Ending("no_progress", f"every source is exhausted after {state.step} steps")
    return _no_signal(state.silence, run)


def _no_signal(silence: Silence, run: RunSettings) -> Ending | None:
    limit = run.no_progress_steps * run.groups_per_step
    if silence.dead_groups >= limit:
        counts = ", ".join(f"{n} {reason}" for reason, n in silence.dead_reasons.most_common(5))
        return Ending(
            "no_progress",
            f"{silence.dead_groups} groups in a row ended without one admitted: {counts}",
        )
    if silence.silent_steps >= run.no_progress_steps:
        return Ending(
            "no_progress",
            f"{silence.silent_steps} steps in a row had no group with unequal advantages",
        )
    return None


def awaited(state: State, run: RunSettings) -> str | None:
    """What training still has to end before the final evaluation; None when nothing has."""
    if state.uncommitted_step is not None:
        return f"the commit of step {state.uncommitted_step}"
    if state.step >= run.steps:
        left = state.groups.undecided
        return f"the ends of {left} groups" if left else None
    left = sum(1 for _ in state.groups.open_groups())
    return f"the ends of {left} groups" if left else None


def drain_limit_s(state: State, run: RunSettings) -> float:
    """How long to wait without any news of training before giving up on what is awaited."""
    training = state.uncommitted_step is not None or (
        state.step < run.steps and state.groups.in_windows > 0
    )
    return run.drain_wait_s * (UNCOMMITTED_FACTOR if training else 2)
