"""What a person wants to know of a run, folded from its LEDGER: pure, so that any cursor may feed it."""

from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, field

from broker.bus import Bus, Stored
from broker.errors import Poison, TooLong
from broker.messages import (
    CheckpointWritten,
    EvaluationFinished,
    Event,
    Incident,
    MixtureUpdated,
    ReaderAdvanced,
    RunDraining,
    RunEnded,
    RunStarted,
    StepCommitted,
    StepPlanned,
)
from broker.topology import Log, is_unretained

RECENT_STEPS = 20
"""Rates and means shown live are over this many steps."""


@dataclass(frozen=True)
class StepSeen:
    """One committed step."""

    step: int
    status: str
    at_us: int
    metrics: dict[str, float | None]


Pause = tuple[int, int]
"""From and to, in microseconds."""


@dataclass
class RunView:
    """The state of a run as its ledger tells it."""

    starts: int = 0
    """How often it was begun: once, and anew after each end."""
    started_us: int | None = None
    pauses: list[Pause] = field(default_factory=list)
    """When nothing of it ran, oldest first: known of those between an end and a new start, and those
    noted by who took it up again."""
    ready_us: int | None = None
    """When the first checkpoint was written: the warm-up is over."""
    step: int = 0
    version: int = 0
    trained_steps: int = 0
    trained_groups: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Groups dropped by reason; those that the policy filtered out up to its last window."""
    staleness_max: int = 0
    recent: deque[StepSeen] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    first_step_us: int | None = None
    generations: int = 0
    evaluations: dict[str, list[EvaluationFinished]] = field(default_factory=dict)
    incidents: Counter[str] = field(default_factory=Counter)
    last_incident: str = ""
    draining: str | None = None
    ended: RunEnded | None = None
    ended_sequence: int = 0
    last_us: int | None = None
    """When the newest event was said."""
    position: int = 0
    """Sequence of the newest event."""
    passed: dict[tuple[str, str], int] = field(default_factory=dict)
    """(reader, log) -> sequence that the reader has made durable."""

    def apply_stored(self, stored: Stored) -> None:
        """What cannot be read is passed over: whoever needs it says so."""
        if is_unretained(stored.subject):
            self.position = stored.sequence
            return
        with suppress(Poison):
            self.apply(stored.event(), stored.sequence)

    def apply(self, event: Event, sequence: int) -> None:
        self.position, self.last_us = sequence, event.at_us
        match event:
            case RunStarted():
                # A resumed run goes on: what its earlier life did still counts.
                self.starts += 1
                self.started_us = self.started_us or event.at_us
                if self.ended is not None:
                    self.pauses.append((self.ended.at_us, event.at_us))
                self.draining, self.ended, self.ended_sequence = None, None, 0
            case EvaluationFinished():
                self.evaluations.setdefault(event.benchmark, []).append(event)
            case Incident():
                self.incidents[event.kind] += 1
                self.last_incident = f"{event.role}: {event.kind}: {event.detail}"
            case RunDraining():
                self.draining = event.reason
            case RunEnded():
                self.ended, self.ended_sequence = event, sequence
            case ReaderAdvanced():
                self.passed[event.reader, event.log] = event.sequence
            case _:
                self._learn(event)

    def _learn(self, event: Event) -> None:
        """What learner and policy say of steps and windows."""
        match event:
            case CheckpointWritten():
                self.ready_us = self.ready_us or event.at_us
            case StepPlanned():
                self._count_drops(event.dropped)
                oldest = max((g.staleness for g in event.groups), default=0)
                self.staleness_max = max(self.staleness_max, oldest)
            case StepCommitted():
                self._commit(event)
            case MixtureUpdated():
                seen = sum(share.generated for share in event.domains)
                admitted = sum(share.admitted for share in event.domains)
                # Exact at the cut of a window, which is when the policy says so.
                self.dropped["filtered"] = max(0, seen - admitted)
            case _:
                pass

    def _count_drops(self, dropped: tuple[object, ...]) -> None:
        self.dropped.update(getattr(group, "reason", "") for group in dropped)

    def _commit(self, event: StepCommitted) -> None:
        self.step, self.version = event.step, event.version
        self._count_drops(event.dropped)
        self.first_step_us = self.first_step_us or event.at_us
        self.recent.append(StepSeen(event.step, event.status, event.at_us, event.metrics))
        if event.status == "trained":
            self.trained_steps += 1
            self.trained_groups += int(event.metrics.get("groups") or 0)
            self.generations += int(event.metrics.get("generations") or 0)

    # --- figures ---

    def is_complete(self, steps: int) -> bool:
        """Whether it has ended with so many steps, so that nothing is left to train."""
        ended = self.ended is not None and self.ended.status == "finished"
        return ended and self.step >= steps

    def seconds(self, from_us: int, to_us: int) -> float:
        """Between two times, the pauses left out."""
        paused = sum(max(0, min(to_us, end) - max(from_us, begin)) for begin, end in self.pauses)
        return (to_us - from_us - paused) / 1e6

    def running_s(self, now_us: int) -> float:
        """From the start to now, or to the end."""
        end = now_us if self.ended is None else self.ended.at_us
        return self.seconds(self.started_us or end, end)

    def timings(self, began_us: int, now_us: int) -> dict[str, float | None]:
        """Seconds that the demo's promises are about. began_us: the start of this life's supervisor."""

        def between(first: int | None, last: int | None) -> float | None:
            if first is None or last is None or last < first:
                return None  # of an earlier life
            return round(self.seconds(first, last), 3)

        return {
            "total_s": between(began_us, now_us),
            "start_s": between(began_us, self.started_us),
            "warmup_s": between(self.started_us, self.ready_us),
            "first_step_s": between(self.ready_us, self.first_step_us),
        }

    def seconds_per_step(self) -> float | None:
        """Over the recent steps."""
        if len(self.recent) < 2:
            return None
        span_s = self.seconds(self.recent[0].at_us, self.recent[-1].at_us)
        return span_s / (len(self.recent) - 1)

    def samples_per_s(self) -> float | None:
        """Trained answers per second over the recent steps."""
        seconds = self.seconds_per_step()
        if not seconds:
            return None
        answers = [step.metrics.get("generations") or 0 for step in list(self.recent)[1:]]
        return sum(answers) / len(answers) / seconds

    def reward(self, domain: str | None = None) -> float | None:
        """Mean reward over the recent steps, of one domain if named."""
        key = "reward_mean" if domain is None else f"reward/{domain}"
        found = [v for step in self.recent if (v := step.metrics.get(key)) is not None]
        return sum(found) / len(found) if found else None

    def domains(self) -> list[str]:
        """Domains trained or evaluated so far."""
        trained = {
            k.partition("/")[2] for s in self.recent for k in s.metrics if k[:7] == "reward/"
        }
        return sorted(trained | set(self.evaluations))

    def seconds_left(self, steps: int) -> float | None:
        seconds = self.seconds_per_step()
        return None if seconds is None else max(0, steps - self.step) * seconds

    def recorder_behind(self) -> dict[str, int]:
        """Per log, how many messages that count the store does not have yet; after the end."""
        if self.ended is None:
            return {}
        wanted = {str(log): last for log, last in self.ended.last_sequences.items()}
        # LEDGER counts up to the end itself; what readers write behind it does not.
        wanted["LEDGER"] = self.ended_sequence
        return {
            log: last - self.passed.get(("recorder", log), 0)
            for log, last in wanted.items()
            if log != "DEAD" and self.passed.get(("recorder", log), 0) < last
        }


async def read_view(bus: Bus, wait_s: float) -> RunView:
    """The ledger from its first message to the one that is last now; TooLong when it does not come."""
    view, end = RunView(), (await bus.state(Log.LEDGER)).last
    cursor = await bus.cursor(Log.LEDGER, 0)
    try:
        while cursor.position < end:
            batch = await cursor.read(500, wait_s)
            if not batch:
                raise TooLong(
                    f"LEDGER: nothing after {cursor.position} of {end} within {wait_s:.0f} s"
                )
            for stored in batch:
                view.apply_stored(stored)
    finally:
        await cursor.close()
    return view
