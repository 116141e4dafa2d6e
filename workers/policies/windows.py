"""The policy as a state machine over the VERIFIED log: arrivals in log order -> decisions.

No clock, no I/O. Every arrival ends in exactly one decision: dropped or failed, or member of one
closed window. The same log gives the same decisions, also after a restart from any snapshot: what
ANNOTATED and LEDGER already hold (`Recorded`) is taken over, never decided anew.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from broker.errors import SluiceError
from broker.messages import MixtureShare
from workers.policies.annotate import annotate_dropped
from workers.policies.decisions import (
    RUN_ENDED,
    Closed,
    Decision,
    Ended,
    Recorded,
    Rules,
    Snapshot,
    failed,
    run_ended,
)
from workers.policies.group import Group, readable
from workers.policies.judged import Judged
from workers.policies.mixers import proportions
from workers.policies.order import Arrival, Sequencer, Unit
from workers.policies.program import Memory, Program
from workers.policies.shadows import Shadow
from workers.policies.shortfall import shortfall
from workers.policies.statistics import DomainStatistics


@dataclass(frozen=True, eq=False)
class _Member:
    arrival: Arrival
    judged: Judged


class WindowMachine:
    """Feeds arrivals through the program and cuts windows."""

    def __init__(
        self,
        program: Program,
        rules: Rules,
        shares: Mapping[str, float],
        recorded: Recorded | None = None,
        snapshot: Snapshot | None = None,
        shadows: Sequence[Shadow] = (),
    ) -> None:
        """shadows: take up what they remembered when the snapshot was taken."""
        self.program, self.rules = program, rules
        self.recorded = recorded or Recorded()
        self._replay_end = max((r.verified_seq for r in self.recorded.groups.values()), default=0)
        self.position = snapshot.position if snapshot else 0
        self.window = snapshot.window if snapshot else 0
        """Newest closed window."""
        # A run that was resumed since is drained no more.
        self.drained = bool(snapshot) and snapshot.drained_after == self.recorded.ended_requests
        """No window is opened any more; what still comes is dropped as `run_ended`."""
        self._floor = max(self.recorded.ended_requests, self.recorded.floor)
        self._open: list[_Member] = []
        self._decided = 0
        self._seen: dict[str, int] = {}
        """Groups fed to this machine, with their request_seq."""
        self._domains = tuple(shares)
        self._prior_D = proportions(np.array(list(shares.values())), "source shares")
        self._statistics = DomainStatistics(
            self._domains, program.mixer.method.window, snapshot.statistics if snapshot else None
        )
        self._memory: Memory = snapshot.memory if snapshot else {}
        self._shadows = tuple(shadows)
        if snapshot:
            for shadow in self._shadows:
                shadow.memory = snapshot.shadows.get(shadow.name, {})
        self._sequencer = Sequencer(
            deterministic=rules.deterministic, broken=snapshot.broken if snapshot else None
        )
        self._target_D = self._prior_D
        if snapshot:
            # Taken as it is: normalising again could change the last bit.
            self._target_D = np.array([snapshot.target.get(name, 0.0) for name in self._domains])
        else:
            self._target_D = self._propose()

    # --- what may be asked of it ---------------------------------------------------------------

    @property
    def open_groups(self) -> int:
        """Admitted groups of the window that is still open."""
        return len(self._open)

    @property
    def replaying(self) -> bool:
        """Whether a window on record is still to be rebuilt."""
        return self.window + 1 in self.recorded.cuts

    def has_seen(self, group_id: str) -> bool:
        """Whether the group has arrived, now or before the snapshot."""
        return group_id in self._seen or group_id in self.recorded.groups

    def raise_floor(self, request_seq: int) -> None:
        """Every group up to `request_seq` has ended; nothing about them needs to be kept."""
        if request_seq <= self._floor:
            return
        self._floor = request_seq
        self._seen = {g: seq for g, seq in self._seen.items() if seq > self._floor}
        if self.position >= self._replay_end:
            kept = {g: r for g, r in self.recorded.groups.items() if r.request_seq > self._floor}
            self.recorded = replace(self.recorded, groups=kept)

    def feed(self, arrival: Arrival) -> list[Decision]:
        """Take the next message of VERIFIED (train only) and return what is decided by it."""
        if arrival.sequence > self.position:
            self.position = arrival.sequence
            if not self._is_second_copy(arrival):
                self._count(arrival)
        key = arrival.event.group
        if self._is_settled(arrival):
            return self._close_if_due()
        self._seen[key.group_id] = key.request_seq
        record = self.recorded.groups.get(key.group_id)
        if record is not None and record.reason == RUN_ENDED:
            # Only a drain drops so. It is in force from here on, unless it was that of an earlier
            # run, or may have yet to come: one of a bundle was perhaps held back until then.
            earlier = key.request_seq <= self.recorded.ended_requests
            self.drained |= not earlier and not self.replaying and key.bundle_size == 1
            return [run_ended(arrival), *self._close_if_due()]
        if self.drained:
            return [run_ended(arrival)]
        decisions: list[Decision] = []
        for unit in self._sequencer.feed(arrival):
            decisions += self._decide(unit)
        return decisions + self._close_if_due()

    def drain(self) -> list[Decision]:
        """Close the window with what it has; what is held back or comes later is dropped."""
        if self.drained:
            return []
        self.drained = True
        decisions: list[Decision] = [run_ended(held) for held in self._sequencer.flush()]
        if self._open:
            return [*decisions, self._close()]
        return [*decisions, *(s.close(self.window + 1) for s in self._shadows if s.open)]

    # --- one group -----------------------------------------------------------------------------

    def _count(self, arrival: Arrival) -> None:
        event, recorded = arrival.event, self.recorded
        if event.request is not None:
            self._statistics.saw_request(event.group, event.request.mixture)
        earlier = event.group.request_seq <= recorded.ended_requests
        if not arrival.failed and (not earlier or arrival.sequence <= recorded.ended_verified):
            self._statistics.saw_generated(event.group.domain)

    def _is_second_copy(self, arrival: Arrival) -> bool:
        group_id = arrival.event.group.group_id
        record = self.recorded.groups.get(group_id)
        again = record is not None and record.verified_seq != arrival.sequence
        return again or group_id in self._seen

    def _is_settled(self, arrival: Arrival) -> bool:
        """A second copy, or output for a group that ended without us."""
        key = arrival.event.group
        ended = key.group_id not in self.recorded.groups and key.request_seq <= self._floor
        return ended or self._is_second_copy(arrival)

    def _decide(self, unit: Unit) -> list[Decision]:
        self._decided += len(unit.arrivals)
        if not unit.whole:
            return [self._end_broken(arrival) for arrival in unit.arrivals]
        read = [(arrival, readable(arrival.event)) for arrival in unit.arrivals]
        groups = [(arrival, group) for arrival, group in read if isinstance(group, Group)]
        if len(groups) == len(read):
            for shadow in self._shadows:
                shadow.judge(groups)
        judged = [
            (arrival, self._judge(group) if isinstance(group, Group) else group)
            for arrival, group in read
        ]
        members = [_Member(a, j) for a, j in judged if isinstance(j, Judged) and not j.reason]
        if len(members) == len(judged):
            self._open += members
            return []
        return [self._end(arrival, j) for arrival, j in judged]

    def _judge(self, group: Group) -> Judged:
        """The program's word on a group."""
        judged = self.program.judge(group, self._memory)
        solved, _ = group.successes()
        scores_R = judged.group.scores_G[judged.group.usable_G]
        self._statistics.saw_scores(group.domain, scores_R, solved)
        record = self.recorded.groups.get(group.group_id)
        if record is not None:
            # The record wins: another build of the program might judge otherwise.
            judged = judged.dropped("" if record.outcome == "admitted" else record.reason)
        return judged

    def _end(self, arrival: Arrival, judged: Judged | str) -> Ended:
        if isinstance(judged, str):
            return self._counted(failed(arrival, judged))
        # A member that would have been kept ends with its bundle.
        reason = judged.reason or "bundle"
        rows = annotate_dropped(judged, reason)
        return self._counted(Ended(arrival, "dropped", reason, rows))

    def _end_broken(self, arrival: Arrival) -> Ended:
        if arrival.failed:
            return self._counted(failed(arrival, arrival.event.reason))
        return self._counted(Ended(arrival, "dropped", "bundle"))

    def _counted(self, ended: Ended) -> Ended:
        reason = ended.reason if ended.outcome == "dropped" else ended.outcome
        self._statistics.saw_end(ended.arrival.event.group.domain, reason)
        return ended

    # --- windows -------------------------------------------------------------------------------

    def _is_due(self) -> bool:
        full = len(self._open) >= self.rules.groups_per_step
        return full or (bool(self._open) and self._decided >= self.rules.refill_limit)

    def _close_if_due(self) -> list[Decision]:
        cut = self.recorded.cuts.get(self.window + 1)
        if cut is None:
            return [self._close()] if self._is_due() else []
        if self.position < cut:
            return []
        if self.position > cut or not self._open:
            raise SluiceError(
                f"window {self.window + 1} was cut at VERIFIED {cut}, but the log read again has "
                f"{len(self._open)} admitted groups at {self.position}: its messages are gone"
            )
        if self._is_due():
            return [self._close()]
        # Cut before it was due: the run was draining, this one or an earlier one of the same id.
        newest = max(m.arrival.event.group.request_seq for m in self._open)
        decisions = self.drain()
        self.drained = newest > self.recorded.ended_requests
        return decisions

    def _close(self) -> Closed:
        members, self._open, self._decided = self._open, [], 0
        self.window += 1
        decision = self.program.decide([m.judged for m in members], self.window, self._memory)
        admitted: dict[str, int] = {}
        for member in members:
            name = member.arrival.event.group.domain
            admitted[name] = admitted.get(name, 0) + 1
        self._statistics.close_window(decision.magnitudes, admitted)
        self._target_D = self._propose()
        due = self.window % self.rules.snapshot_every == 0
        return Closed(
            window=self.window,
            cut=self.position,
            members=tuple(
                (m.arrival, rows) for m, rows in zip(members, decision.annotations, strict=True)
            ),
            request_seq=self._statistics.state.request_seq,
            shares=self.shares(),
            reason=shortfall(self.window, self._statistics.state.domains),
            pending=tuple(held.sequence for held in self._sequencer.pending()),
            shadowed=tuple(shadow.close(self.window) for shadow in self._shadows if shadow.open),
            snapshot=self.snapshot().model_dump_json().encode() if due else None,
        )

    # --- mixture and snapshot ------------------------------------------------------------------

    def _propose(self) -> np.ndarray:
        memory = self._memory.setdefault("mixer", {})
        history = self._statistics.history(self._prior_D, self._target_D, self.window, memory)
        shares_D = np.asarray(self.program.mixer.method(history), dtype=np.float64)
        return proportions(shares_D, f"mixer {self.program.mixer.name}")

    def shares(self) -> tuple[MixtureShare, ...]:
        """The mixture in force with its counts, as of the last closed window."""
        return self._statistics.shares(self._target_D)

    def snapshot(self) -> Snapshot:
        """Shares its parts with the machine: serialise it before feeding on."""
        return Snapshot(
            policy_version=self.program.version,
            position=self.position,
            window=self.window,
            target={name: float(self._target_D[i]) for i, name in enumerate(self._domains)},
            statistics=self._statistics.state,
            memory=self._memory,
            shadows={shadow.name: shadow.memory for shadow in self._shadows},
            pending=[held.sequence for held in self._sequencer.pending()],
            broken=dict(self._sequencer.broken),
            drained_after=self.recorded.ended_requests if self.drained else None,
        )
