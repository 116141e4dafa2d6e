"""Kills what a run is made of, one thing at a time or all at once, and sees whether anything was lost.

A `Deployment` is a run with a NATS server and a Postgres of its own, so that these may die too.
Progress is read from the learner's log: it needs no service that may be away.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

import store.embedded
from broker.bus import Bus
from broker.embedded import EmbeddedNats
from broker.messages import StepPlanned
from broker.topology import Log, kind_subjects
from store.database import with_database
from store.schema import upgrade
from tests.e2e.cluster import ROLES, Cluster

SERVICES = ("nats", "postgres")
KINDS = (*ROLES, "all", *SERVICES)
"""What can be killed: a process of a role, all of them, or a server under them."""
POSTGRES_AWAY_S = 20.0
NATS_AWAY_S = 2.0
"""At most; a supervisor starts it again at once."""
READ_WAIT_S = 10.0
TEMPLATE = "template_sluice"


class Postgres:
    """A server that can be taken away and comes back at the same address with the same data."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._server = store.embedded.start(directory)
        with self._admin() as connection:
            for name in ("fsync", "full_page_writes"):
                # Of the machine nothing is lost here, only processes: no wait for the disk.
                connection.execute(f"ALTER SYSTEM SET {name} = off".encode())
            connection.execute(b"SELECT pg_reload_conf()")
            connection.execute(f"CREATE DATABASE {TEMPLATE}".encode())
        upgrade(with_database(self._server.url, TEMPLATE))

    def _admin(self) -> psycopg.Connection:
        return psycopg.connect(self._server.url, autocommit=True)

    @contextmanager
    def database(self, name: str) -> Iterator[str]:
        """A migrated, empty database."""
        with self._admin() as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}".encode())
        yield with_database(self._server.url, name)
        with self._admin() as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())

    def stop(self) -> None:
        self._server.stop()

    def start(self) -> None:
        url = self._server.url
        self._server = store.embedded.start(self._directory)
        assert self._server.url == url


@dataclass
class Deployment:
    """A run, and the servers under it."""

    run: Cluster
    nats: EmbeddedNats
    postgres: Postgres

    @property
    def processes(self) -> list[str]:
        return sorted(self.run.processes)

    def holding(self, role: str) -> list[str]:
        """Names of the processes that work at a role."""
        return [name for name in self.processes if role in name.split(",")]

    @contextmanager
    def striking(self, kind: str, rng: random.Random) -> Iterator[None]:
        """Kill it, and start it again; Postgres comes back only at the end of the block, after its time."""
        if kind == "postgres":
            self.postgres.stop()
            back_at = time.monotonic() + POSTGRES_AWAY_S
            try:
                yield
                time.sleep(max(0.0, back_at - time.monotonic()))
            finally:
                self.postgres.start()
            return
        self._strike(kind, rng)
        yield

    def _strike(self, kind: str, rng: random.Random) -> None:
        if kind == "nats":
            os.kill(self.nats.pid, signal.SIGKILL)
            time.sleep(rng.uniform(0, NATS_AWAY_S))
            self.nats.restart()
        else:
            names = self.processes if kind == "all" else self.holding(kind)
            assert names, f"{kind}: no such process among {self.processes}"
            self.run.kill(*names)
            self.run.start(*names)

    def step(self) -> int:
        """The newest step that the learner says to have committed; 0 before."""
        events = self.run.events("learner") if (self.run.directory / "learner.log").exists() else []
        return max((e["step"] for e in events if e["event"] == "step committed"), default=0)

    def wait_step(self, step: int, *, limit_s: float) -> None:
        """Until the step is committed; no process may have left by itself before the last step."""
        deadline = time.monotonic() + limit_s
        while self.step() < step:
            self._check_alive()
            assert time.monotonic() < deadline, f"no step {step} within {limit_s} s: {self.logs()}"
            time.sleep(0.1)

    def _check_alive(self) -> None:
        for name, process in self.run.processes.items():
            assert process.poll() in (None, 0), f"{name}: {process.poll()}\n{self.run.log(name)}"
        left = [process for process in self.run.processes.values() if process.poll() is None]
        assert left, f"the run was over before its last step: {self.logs()}"

    def logs(self) -> str:
        return "\n".join(f"--- {name}\n{self.run.log(name, 1500)}" for name in self.processes)


# --- what must hold afterwards ------------------------------------------------------------------


@dataclass(frozen=True)
class Findings:
    """What a run that has ended left on record."""

    problems: Sequence[str]
    """Empty when nothing was lost, doubled or different."""
    groups: int
    trained: int
    redone: int
    """Steps that a learner took again, of all its lives."""


def examine(deployment: Deployment, steps: int, *, status: str = "finished") -> Findings:
    """Nine proofs, and the same once more without the store where the logs alone can tell."""
    run = deployment.run
    problems = [f"proof: {claim}: {against}" for claim, against in run.proofs().items()]
    if run.status() != status:
        problems.append(f"the run ended as {run.status()}; expected {status}")
    taken = run.query("select step, status, digest from learner_step order by step")
    if [row["step"] for row in taken] != list(range(1, steps + 1)):
        problems.append(f"steps {[row['step'] for row in taken]}; expected 1..{steps}")
    committed = {row["step"]: row["digest"] for row in taken}
    redone = [
        (e["step"], e["digest"]) for e in run.events("learner") if e["event"] == "step redone"
    ]
    problems += [
        f"step {step} was redone to {digest}, committed as {committed.get(step)}"
        for step, digest in redone
        if committed.get(step) != digest
    ]
    groups = run.query(
        "select count(*) as n, max(request_seq) as last,"
        " count(*) filter (where state = 'trained') as trained,"
        " count(*) filter (where state not in ('trained', 'dropped', 'failed', 'measured')) as open"
        " from prompt_group"
    )[0]
    if groups["n"] != groups["last"] or groups["open"]:
        problems.append(f"groups lost or left open: {groups}")
    planned = run.with_bus(planned_groups)
    mentions = Counter(group for _, group in planned)
    problems += [f"{group} was planned {n} times" for group, n in mentions.items() if n > 1]
    skipped = {row["step"] for row in taken if row["status"] == "skipped"}
    meant = sum(step not in skipped for step, _ in planned)
    if meant != groups["trained"]:
        problems.append(
            f"{meant} groups planned in steps that trained, {groups['trained']} trained"
        )
    if len(skipped) > steps / 2:
        problems.append(f"{len(skipped)} of {steps} steps were skipped")
    # What a dead worker held comes again after 30 s, too late for a run that went on meanwhile.
    expected = run.empty_steps("stale")
    if status == "stopped":
        expected.add(("stop_requested", "sluice stop"))
    told = {(row["kind"], row["detail"]) for row in run.query("select kind, detail from incident")}
    problems += [f"incident {kind}: {detail}" for kind, detail in sorted(told - expected)]
    return Findings(problems, groups["n"], groups["trained"], len(redone))


async def planned_groups(bus: Bus) -> list[tuple[int, str]]:
    """(step, group) of every mention of a group in a plan, in the order of LEDGER."""
    subject = kind_subjects(bus.run, StepPlanned.KIND)
    last = await bus.last(Log.LEDGER, subject)
    cursor = await bus.cursor(Log.LEDGER, 0, [subject])
    found: list[tuple[int, str]] = []
    try:
        while last is not None and cursor.position < last.sequence:
            batch = await cursor.read(500, READ_WAIT_S)
            assert batch, f"LEDGER: nothing after {cursor.position} of {last.sequence}"
            plans = [event for stored in batch if isinstance(event := stored.event(), StepPlanned)]
            found += [(plan.step, group.group_id) for plan in plans for group in plan.groups]
    finally:
        await cursor.close()
    return found
