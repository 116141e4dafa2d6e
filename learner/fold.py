"""The learner's state as LEDGER tells it: what was planned, committed, published and checkpointed.

Pure but for `read_ledger`. What a learner wrote after `RunEnded` had closed the run does not count:
the run's groups had ended by then.
"""

from dataclasses import dataclass, field

from broker.bus import Bus
from broker.errors import TooLong
from broker.messages import (
    CheckpointWritten,
    Event,
    RunEnded,
    RunStarted,
    StepCommitted,
    StepPlanned,
    WeightsPublished,
)
from broker.topology import Log, kind_subjects

KINDS = (RunStarted, RunEnded, StepPlanned, StepCommitted, WeightsPublished, CheckpointWritten)
READ_WAIT_S = 30.0
"""To read one batch of events that are known to be there."""


@dataclass
class Ledger:
    """Fold of the events in `KINDS`."""

    planned: dict[int, StepPlanned] = field(default_factory=dict)
    committed: dict[int, StepCommitted] = field(default_factory=dict)
    published: dict[int, WeightsPublished] = field(default_factory=dict)
    """By version."""
    checkpoints: list[CheckpointWritten] = field(default_factory=list)
    """Oldest first."""
    sequences: dict[str, int] = field(default_factory=dict)
    """Per kind, the sequence of its last event, void ones included: what compare-and-set expects."""
    ended: bool = False
    """The run has ended and was not started again."""
    ended_steps: set[int] = field(default_factory=set)
    """Planned, not committed when the run ended: their groups ended as `run_ended`."""

    ended_verified: int = 0
    """Groups verified up to here in VERIFIED, and not trained, ended with a run that was resumed since."""

    def apply(self, sequence: int, event: Event) -> None:
        """Fold the next event in log order."""
        self.sequences[event.KIND] = sequence
        match event:
            case RunStarted():
                self.ended = False
            case RunEnded():
                self.ended = True
                self.ended_steps = self.planned.keys() - self.committed.keys()
                self.ended_verified = event.last_sequences.get(Log.VERIFIED, 0)
            case WeightsPublished():
                # Rollouts may have these weights, so their version is taken even when void.
                self.published[event.version] = event
            case CheckpointWritten():
                self.checkpoints.append(event)
            case StepPlanned() if not self.ended:
                self.planned[event.step] = event
            case StepCommitted() if not self.ended:
                self.committed[event.step] = event
            case _:
                pass

    @property
    def last_planned(self) -> int:
        """Number of the last planned step; 0 before the first."""
        return max(self.planned, default=0)

    @property
    def last_to_redo(self) -> int:
        """After the end of the run, only what was committed still counts."""
        return max(self.committed, default=0) if self.ended else self.last_planned

    @property
    def last_published(self) -> int:
        """Newest published version; -1 before the first."""
        return max(self.published, default=-1)

    def cursor(self) -> int:
        """Sequence in ANNOTATED up to which everything is planned."""
        return self.planned[self.last_planned].cursor if self.planned else 0


async def read_ledger(bus: Bus) -> Ledger:
    """Fold LEDGER to where it ends now. TooLong when it cannot be read to there."""
    subjects = tuple(kind_subjects(bus.run, kind.KIND) for kind in KINDS)
    ends = [await bus.last(Log.LEDGER, subject) for subject in subjects]
    end = max((stored.sequence for stored in ends if stored is not None), default=0)
    ledger = Ledger()
    cursor = await bus.cursor(Log.LEDGER, 0, subjects)
    try:
        while cursor.position < end:
            read = await cursor.read(256, READ_WAIT_S)
            if not read:
                raise TooLong(
                    f"LEDGER: read to {cursor.position} of {end}, then nothing for {READ_WAIT_S} s"
                )
            for stored in read:
                ledger.apply(stored.sequence, stored.event())
    finally:
        await cursor.close()
    return ledger
