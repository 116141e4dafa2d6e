"""What the dispatcher knows: a fold of the logs, the same whether lived through or read again. Pure.

A restart folds REQUESTS, then LEDGER, then ANNOTATED, then follows all of them; the store is never
asked. LEDGER comes before ANNOTATED, so that what arrived after the end of a run is known as late.
"""

from collections.abc import Sequence

from broker.bus import Stored
from broker.messages import (
    CheckpointWritten,
    EvaluationFinished,
    Event,
    GroupRequested,
    Incident,
    LogPurged,
    MixtureCounters,
    MixtureUpdated,
    ReaderAdvanced,
    RunDraining,
    RunEnded,
    RunStarted,
    StepCommitted,
    StepPlanned,
    WeightsPublished,
)
from broker.topology import (
    H_COHORT_END,
    H_GROUP,
    H_OUTCOME,
    H_PURPOSE,
    H_REASON,
    H_REQUEST_SEQ,
    H_SCORE,
    Log,
)
from workers.dispatcher.evaluation import Evaluations
from workers.dispatcher.facts import Cohort, Life, Silence
from workers.dispatcher.groups import FAILED, RUN_ENDED, Groups, Requested, TrainId
from workers.dispatcher.spans import StepSpans

STOP_REQUESTED, SAMPLE_SKIPPED = "stop_requested", "sample_skipped"


class State:
    """The fold. `apply_*` take what a log says; everything else reads."""

    def __init__(self, *, max_attempts: int) -> None:
        self.groups = Groups(max_attempts=max_attempts)
        self.evaluations = Evaluations()
        self.life = Life()
        self.cohort = Cohort()
        self.silence = Silence()
        self.request_seq = 0
        """Number of the last request of any purpose."""
        self.sequence = 0
        """Last message in REQUESTS."""
        self.last_train_sequence = 0
        """Last train request in REQUESTS: it holds the position of the mixture."""
        self.last_draw = 0
        """Highest number of a draw in REQUESTS."""
        self.counters: MixtureCounters | None = None
        """As of the last train request."""
        self.mixture: MixtureUpdated | None = None
        self.step = 0
        """Last committed one."""
        self.version = 0
        """Newest committed one."""
        self.step_of_version: dict[int, int] = {0: 0}
        self.version_of_step: dict[int, int] = {0: 0}
        self.published: int | None = None
        """Newest version whose weights can be fetched."""
        self.weights_sequences: dict[int, int] = {}
        """Version -> its WeightsPublished in LEDGER."""
        self.checkpoint: CheckpointWritten | None = None
        self.checkpoint_sequence: int | None = None
        self.spans = StepSpans()
        self.readers: dict[tuple[str, str], int] = {}
        """(reader, log) -> sequence up to which it is done."""
        self.floor = 0
        """Requests up to it are purged or may be."""
        self.floor_sequence = 0
        """The last LogPurged in LEDGER."""
        self.moves = 0
        """Grows with everything that moves the run; readers' notes about themselves do not."""
        self._probes: dict[str, int] = {}
        self._planned: dict[int, StepPlanned] = {}
        self._cuts: list[dict[str, int]] = []
        """Of every end of the run: log -> last sequence that counts."""

    # --- REQUESTS -----------------------------------------------------------------------------

    def apply_request(self, stored: Stored) -> None:
        """From the headers alone."""
        self.sequence = max(self.sequence, stored.sequence)
        request_seq = int(stored.headers[H_REQUEST_SEQ])
        self.request_seq = max(self.request_seq, request_seq)
        group_id = stored.headers[H_GROUP]
        match stored.headers[H_PURPOSE]:
            case "train":
                self._note_draw(TrainId.parse(group_id).draw)
                self.last_train_sequence = stored.sequence
                self.groups.requested(Requested(group_id, request_seq, stored.sequence))
            case "eval":
                self.evaluations.requested(group_id, request_seq)
            case _:
                self._probes[group_id] = request_seq

    def _note_draw(self, draw: int) -> None:
        # Draws follow each other: a number far ahead is somebody else's.
        if self.last_draw == 0 or draw == self.last_draw + 1:
            self.last_draw = draw

    def apply_train_request(self, request: GroupRequested) -> None:
        """The newest train request with its body: position of the mixture, cohort."""
        self.counters = request.mixture
        if request.cohort is not None and request.cohort != self.cohort.number:
            # Its requests follow each other, so the last one tells where it began, if none is lacking.
            size = request.cohort_size or 1
            first = request.group.request_seq + 1 - size
            self.cohort = Cohort(request.cohort, first, touched=False, decided=False, size=size)

    @property
    def mark(self) -> tuple[int, int, int]:
        """Where REQUESTS stands, for `withdraw`."""
        return self.sequence, self.request_seq, self.last_train_sequence

    def withdraw(self, requests: Sequence[GroupRequested], mark: tuple[int, int, int]) -> None:
        """Requests that were folded and then not stored, because the run ends: nothing follows them."""
        self.sequence, self.request_seq, self.last_train_sequence = mark
        for request in requests:
            if request.group.purpose == "train":
                self.groups.withdraw(request.group.group_id)
            else:
                self.evaluations.withdraw(request.group.group_id)

    # --- ANNOTATED and VERIFIED ---------------------------------------------------------------

    def apply_annotated(self, stored: Stored) -> None:
        """From the headers alone."""
        headers = stored.headers
        if headers[H_PURPOSE] != "train":
            return
        self.moves += 1
        if int(headers[H_REQUEST_SEQ]) >= self.cohort.first:
            self.cohort.touched = True
        if H_COHORT_END in headers and self.cohort.touched:
            self.cohort.decided = True
        admitted = headers[H_OUTCOME] == "admitted"
        if admitted:
            self._heard_signal()
        group = self.groups.find(headers[H_GROUP])
        if group is None or not self._counts(group, Log.ANNOTATED, stored.sequence):
            return
        if admitted:
            self.groups.windowed(group.group_id)
            return
        reason = headers.get(H_REASON, "")
        failed = headers[H_OUTCOME] == "failed"
        self._heard_nothing(group, f"failed: {reason}" if failed else reason)
        self.groups.ended(group.group_id, FAILED if failed else reason)

    def _heard_signal(self) -> None:
        self.silence.dead_groups = 0
        self.silence.dead_reasons.clear()

    def _heard_nothing(self, group: Requested, reason: str) -> None:
        before = self._cuts[-1][Log.REQUESTS] if self._cuts else 0
        if reason != RUN_ENDED and group.sequence > before:
            self.silence.dead_groups += 1
            self.silence.dead_reasons[reason] += 1

    def apply_verified(self, stored: Stored) -> None:
        """From the headers alone; purposes eval and probe end here."""
        self.moves += 1
        group_id, score = stored.headers[H_GROUP], stored.headers.get(H_SCORE)
        match stored.headers[H_PURPOSE]:
            case "eval":
                self.evaluations.measured(group_id, None if score is None else float(score))
            case "probe":
                self._probes.pop(group_id, None)
            case _:
                pass

    # --- LEDGER -------------------------------------------------------------------------------

    def apply_ledger(self, event: Event, sequence: int) -> None:
        if not isinstance(event, ReaderAdvanced | LogPurged | Incident):
            self.moves += 1
        match event:
            case RunStarted():
                self.life.started = sequence
                self.silence = Silence()
            case RunDraining():
                self.life.draining, self.life.drain_reason = sequence, event.reason
            case RunEnded():
                self.life.ended = sequence
                # LEDGER counts up to and with the end itself.
                self._cuts.append(dict(event.last_sequences) | {Log.LEDGER: sequence})
            case Incident(kind="stop_requested"):
                self.life.stop = sequence
            case Incident(kind="sample_skipped", group_id=str(group_id)):
                self.groups.reported(group_id)
            case _:
                self._apply_progress(event, sequence)

    def _apply_progress(self, event: Event, sequence: int) -> None:
        match event:
            case StepPlanned():
                self._plan(event, sequence)
            case StepCommitted():
                self._commit(event, sequence)
            case WeightsPublished():
                self.published = max(event.version, self.published or 0)
                # Its commit may be purged.
                self.step_of_version.setdefault(event.version, event.step)
                self.weights_sequences[event.version] = sequence
            case CheckpointWritten():
                self.checkpoint, self.checkpoint_sequence = event, sequence
            case MixtureUpdated():
                self.mixture = event
            case EvaluationFinished():
                self.evaluations.finished(event.version, event.benchmark)
            case ReaderAdvanced():
                self.readers[event.reader, event.log] = event.sequence
            case LogPurged():
                self._purge(event.floor, sequence)
            case _:
                pass

    def _plan(self, planned: StepPlanned, sequence: int) -> None:
        self._planned[planned.step] = planned
        ids = [group.group_id for group in (*planned.groups, *planned.dropped)]
        found = [group for group_id in ids if (group := self.groups.find(group_id)) is not None]
        self.spans.planned(planned.step, sequence, [group.request_seq for group in found])

    def _purge(self, floor: int, sequence: int) -> None:
        """What told of these requests' ends may be gone; that they ended is certain."""
        self.floor_sequence = max(self.floor_sequence, sequence)
        self.floor = max(self.floor, floor)
        self.request_seq = max(self.request_seq, floor)
        self.groups.settle(floor)
        self.spans.forget(floor)
        self._probes = {probe: seq for probe, seq in self._probes.items() if seq > floor}

    def _commit(self, committed: StepCommitted, sequence: int) -> None:
        self.step = max(self.step, committed.step)
        self.version = max(self.version, committed.version)
        self.step_of_version.setdefault(committed.version, committed.step)
        self.version_of_step[committed.step] = committed.version
        signal = committed.metrics.get("signal_groups")
        self.silence.silent_steps = 0 if signal else self.silence.silent_steps + 1
        ends = {dropped.group_id: dropped.reason for dropped in committed.dropped}
        planned = self._planned.pop(committed.step, None)
        if planned is not None:
            ends = {dropped.group_id: dropped.reason for dropped in planned.dropped} | ends
            ends |= {g.group_id: "trained" for g in planned.groups if g.group_id not in ends}
        for group_id, end in ends.items():
            group = self.groups.find(group_id)
            if group is not None and self._counts(group, Log.LEDGER, sequence):
                self.groups.ended(group_id, end)

    def _counts(self, group: Requested, log: Log, sequence: int) -> bool:
        """Whether a message about a group came before the end of the run it was requested in."""
        for cut in self._cuts:
            if group.sequence <= cut[Log.REQUESTS]:
                return sequence <= cut[log]
        return True

    # --- after reading everything -------------------------------------------------------------

    def close_ended_runs(self) -> None:
        """What was still open when the run last ended, ended as `run_ended`."""
        if self._cuts:
            cut = self._cuts[-1][Log.REQUESTS]
            self.groups.end_all(up_to=cut)
            if self.last_train_sequence <= cut:
                # What there is of a begun cohort has ended; the next groups are a cohort of their own.
                self.cohort.lacking = 0

    @property
    def uncommitted_step(self) -> int | None:
        """A step that is planned and not committed."""
        return max((step for step in self._planned if step > self.step), default=None)

    @property
    def settled_floor(self) -> int:
        """Every request up to this request_seq has ended, its retry requested if due."""
        oldest = (
            self.groups.unsettled(),
            self.evaluations.unsettled(),
            min(self._probes.values(), default=None),
        )
        return min((seq - 1 for seq in oldest if seq is not None), default=self.request_seq)
