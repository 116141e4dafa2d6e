"""The policy role: follows VERIFIED by cursor, publishes one decision per group, and the mixture.

Single writer of ANNOTATED: every publication is compare-and-set on the log's last sequence, so a
twin is refused and exits. Nothing is lost when it dies: state is the newest snapshot and the log
after it, and what is on record is taken over, never decided anew.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

import structlog

from broker.bus import Bus, Cursor, Stored
from broker.errors import BadConfiguration
from broker.messages import GroupVerified, Incident
from broker.settings import RunSettings
from broker.telemetry import Health, now_us, writer_id
from broker.topology import Log, kind_subjects
from workers.policies.decisions import Author, Decision, Rules
from workers.policies.ledger import LedgerFollower
from workers.policies.order import Arrival
from workers.policies.program import Program
from workers.policies.publishing import ROLE, Publisher
from workers.policies.reading import arrival_of, verified_of
from workers.policies.restart import load_snapshot, read_annotated, recorded
from workers.policies.settings import PolicySettings
from workers.policies.shadows import Shadow
from workers.policies.shadows import build as build_shadows
from workers.policies.windows import WindowMachine

READ_LIMIT = 64
READ_WAIT_S = 0.1
POLL_S = 0.5
"""State of the run is looked at this often."""
MAX_WINDOW = 1000
"""A window is one atomic batch; the server takes no larger one."""
SNAPSHOT_EVERY = 16
"""Windows, for programs with a memory: it may be large."""


async def run(
    bus: Bus,
    *,
    run: RunSettings,
    settings: PolicySettings,
    shares: Mapping[str, float],
    measured: frozenset[str] = frozenset(),
    health: Health,
    stop: asyncio.Event,
) -> None:
    """Decide until the run has ended or `stop` is set.

    shares: configured weight per domain. measured: signals that the engine provides.
    """
    if run.groups_per_step > MAX_WINDOW:
        raise BadConfiguration(
            f"run.groups_per_step {run.groups_per_step}: expected at most {MAX_WINDOW}, "
            "since a window is published as one atomic batch"
        )
    program = Program(settings, measured)
    program.refuse_small_groups(run.group_size)
    shadows = build_shadows(settings, measured=measured)
    every = snapshot_interval([program, *(shadow.program for shadow in shadows)])
    rules = rules_of(run, settings, snapshot_every=every)
    worker = PolicyWorker(bus, run, program, rules, shares, shadows, health)
    try:
        await worker.start()
        await worker.loop(stop)
    finally:
        await worker.close()


def snapshot_interval(programs: Iterable[Program]) -> int:
    """Windows between snapshots; the logs keep what came since the last one."""
    return SNAPSHOT_EVERY if any(program.remembers for program in programs) else 1


def rules_of(run: RunSettings, settings: PolicySettings, *, snapshot_every: int = 1) -> Rules:
    return Rules(
        groups_per_step=run.groups_per_step,
        refill_limit=settings.refill_rounds * run.groups_per_step,
        deterministic=run.deterministic,
        snapshot_every=snapshot_every,
    )


class PolicyWorker:
    """One process of the role."""

    def __init__(
        self,
        bus: Bus,
        run: RunSettings,
        program: Program,
        rules: Rules,
        shares: Mapping[str, float],
        shadows: Sequence[Shadow],
        health: Health,
    ) -> None:
        self._bus, self._run, self._program, self._health = bus, run, program, health
        self._rules, self._shares, self._shadows = rules, dict(shares), shadows
        self._author = Author(writer_id(ROLE), program.name, program.version)
        self._ledger = LedgerFollower(bus, health)
        self._verified: Cursor | None = None
        self._drain_by: float | None = None
        self._log = structlog.get_logger()

    # --- start ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read what is decided already and stand where the last process stood."""
        await self._ledger.refresh()
        view = self._ledger.view
        annotated, after = await read_annotated(self._bus, self._health)
        snapshot = await load_snapshot(self._bus, view)
        self._machine = WindowMachine(
            self._program, self._rules, self._shares, recorded(annotated, view), snapshot,
            self._shadows,
        )  # fmt: skip
        self._publisher = Publisher(
            self._bus, self._ledger, self._author, self._program.mixer.name, after=after
        )
        self._log.info(
            "policy starts",
            policy=self._program.name,
            policy_version=self._program.version,
            window=self._machine.window,
            after=self._machine.position,
            recorded=len(annotated),
        )
        if view.mixture is None:
            start = self._machine.shares()
            await self._publisher.mixture(
                start, update_no=0, cut=0, request_seq=0, reason="start of the run"
            )
        for sequence in snapshot.pending if snapshot else ():
            stored = await self._bus.get(Log.VERIFIED, sequence)
            if stored is not None and (arrival := await self._arrival(stored)) is not None:
                await self._settle(self._machine.feed(arrival))
        subjects = [kind_subjects(self._bus.run, GroupVerified.KIND, "train")]
        self._verified = await self._bus.cursor(Log.VERIFIED, self._machine.position, subjects)

    async def close(self) -> None:
        await self._ledger.close()
        if self._verified is not None:
            await self._verified.close()

    # --- loop ----------------------------------------------------------------------------------

    async def loop(self, stop: asyncio.Event) -> None:
        assert self._verified is not None, "start comes first"
        now = asyncio.get_running_loop().time
        polled = float("-inf")
        while not stop.is_set():
            self._health.beat()
            if now() - polled >= POLL_S:
                await self._ledger.refresh()
                polled = now()
                if self._ledger.view.ended is not None:
                    self._log.info("the run has ended", reason=self._ledger.view.ended.reason)
                    return
                self._machine.raise_floor(self._ledger.view.floor)
            with self._health.waiting_for("verified groups", READ_WAIT_S):
                batch = await self._verified.read(READ_LIMIT, READ_WAIT_S)
            for stored in batch:
                if stop.is_set():
                    return
                self._health.beat()
                if (arrival := await self._arrival(stored)) is not None:
                    await self._settle(self._machine.feed(arrival))
            await self._drain_if_due(now(), idle=not batch)
            self._health.note(
                window=self._machine.window + 1,
                admitted=f"{self._machine.open_groups} of {self._run.groups_per_step}",
                verified_position=self._machine.position,
            )

    async def _arrival(self, stored: Stored) -> Arrival | None:
        """The message as the machine takes it; what cannot be read becomes a failed group."""
        event, unreadable = verified_of(stored)
        if unreadable:
            self._log.warning("unreadable group", sequence=stored.sequence, reason=unreadable)
            await self._bus.dead_letter(stored, unreadable)
        if event is not None:
            return await arrival_of(self._bus, stored.sequence, event)
        detail = f"VERIFIED {stored.sequence} names no group: {unreadable}"
        incident = Incident(
            writer_id=self._author.writer_id, at_us=now_us(),
            kind="unreadable", role=ROLE, detail=detail,
        )  # fmt: skip
        await self._bus.publish(incident)
        return None

    async def _drain_if_due(self, now: float, *, idle: bool) -> None:
        """Close the last window when the open groups were seen, or have been waited for long enough."""
        draining = self._ledger.view.draining
        if draining is None or self._machine.drained or self._machine.replaying:
            return
        if self._drain_by is None:
            self._drain_by = now + self._run.drain_wait_s
            self._log.info("draining", reason=draining.reason, open=len(draining.open_groups))
        missing = [g for g in draining.open_groups if not self._machine.has_seen(g)]
        if not missing or (idle and now >= self._drain_by):
            self._log.info("drained", missing=missing)
            await self._settle(self._machine.drain())

    async def _settle(self, decisions: Sequence[Decision]) -> None:
        on_record = self._machine.recorded.groups
        if self._rules.deterministic:
            await self._publisher.settle_cohort(decisions, on_record)
        else:
            await self._publisher.settle(decisions, on_record)
