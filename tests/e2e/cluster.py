"""A deployment in small: every role a process of its own against real services, any of them killable."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

from broker.bus import Bus
from broker.jetbus import JetStreamBus
from broker.jetstream import connect
from broker.settings import NatsSettings
from store.audit import verify

ROOT = Path(__file__).parents[2]
DYING_WORKER = Path(__file__).with_name("dying_worker.py")
MISTAKEN_WORKER = Path(__file__).with_name("mistaken_worker.py")
ROLES = ("dispatcher", "rollout", "verifier", "policy", "learner", "recorder")
LIGHT = "dispatcher,verifier,policy,recorder"
"""The roles without torch, as one process: what a test does not kill need not cost a start each."""
LEAVE_LIMIT_S = 10.0
"""A worker leaves within this of SIGTERM."""
ENDLESS: dict[str, object] = {
    "steps": 100_000,
    "run_extra": "max_staleness = 2\nno_progress_steps = 100_000",
}
"""Options of a run that is under way whatever a test does meanwhile, at any pace: it ends by `stop`."""
PASSED = 10
"""So many steps later nothing is under way that was so before: a step has 4 groups, at most 12 are open."""

CONFIG = """
[run]
id = "{run}"
name = "e2e"
seed = 7
steps = {steps}
groups_per_step = {groups_per_step}
group_size = {group_size}
{run_extra}

[model.tiny]
characters = "0123456789abcdefghijklmnopqrstuvwxyz+-*=()<>?:;,.!&|~ "
hidden = {hidden}
layers = 2
heads = 2
kv_heads = 2
intermediate = 128
positions = 64

{sources}

[sampling]
max_tokens = 12

[warmup]
steps = {warmup}
batch_size = 32
learning_rate = 3e-3

[learner]
learning_rate = {learning_rate}
checkpoint_every = {checkpoint_every}
keep_checkpoints = 20

[nats]
log_bytes = {log_bytes}
connect_wait_s = {connect_wait_s}

[store]
connect_wait_s = {connect_wait_s}
{extra}
"""

SOURCES = """
[[source]]
domain = "short"
generator = "ordering"
options = {{length = 2, letters = 12}}
verifier = {{name = "exact"}}
eval_items = {eval_items}

[[source]]
domain = "long"
generator = "ordering"
options = {{length = 3, letters = 8}}
verifier = {{name = "exact"}}
eval_items = {eval_items}
"""

DEFAULTS: dict[str, object] = {
    "steps": 4,
    "warmup": 150,
    "groups_per_step": 4,
    "group_size": 4,
    "hidden": 32,
    "learning_rate": 1e-3,
    "checkpoint_every": 2,
    "run_extra": "max_staleness = 2",
    "log_bytes": 67_108_864,
    "connect_wait_s": 20,
    "extra": '[policy]\nadmit = ["dynamic_sampling"]',
}


class Cluster:
    """Role processes of one run under one directory; a context manager that leaves none behind."""

    def __init__(
        self, directory: Path, *, nats_url: str, postgres_url: str, run: str, **options: object
    ):
        self.directory = directory
        self.run = run
        self.nats_url = nats_url
        self.postgres_url = postgres_url
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.config = directory / "config.toml"
        eval_items = options.pop("eval_items", 8)
        sources = {"sources": SOURCES.format(eval_items=eval_items)}
        self._options = DEFAULTS | sources | options

    @property
    def run_dir(self) -> Path:
        return self.directory / "runs" / self.run

    def __enter__(self) -> "Cluster":
        self.directory.mkdir(parents=True, exist_ok=True)
        self.config.write_text(CONFIG.format(run=self.run, **self._options))
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait(timeout=10)

    # --- processes ---

    @property
    def environment(self) -> dict[str, str]:
        """Of every process: where the services are, and whom not to outlive."""
        return os.environ | {
            "PYTHONPATH": str(ROOT),
            "SLUICE_NATS__URL": self.nats_url,
            "SLUICE_STORE__URL": self.postgres_url,
            "SLUICE_RUNS": str(self.directory / "runs"),
        }

    def start(
        self,
        *roles: str,
        dying: str | None = None,
        mistaken: tuple[str, str] | None = None,
        resume: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start a process per role ("learner", "rollout#2", "policy,verifier"), all at once.

        dying: the point at which it kills itself, see `dying_worker`.
        mistaken: how wrong its clock is and what it does wrongly, see `mistaken_worker`.
        """
        variables = {**self.environment, "SLUICE_PARENT": str(os.getpid()), **(environment or {})}
        worker = ["-m", "ops.cli", "worker"]
        if dying is not None:
            worker = [str(DYING_WORKER), dying]
        elif mistaken is not None:
            worker = [str(MISTAKEN_WORKER), *mistaken]
        for role in roles:
            names = ",".join(name.split("#")[0] for name in role.split(","))
            with (self.directory / f"{role}.log").open("ab") as log:
                self.processes[role] = subprocess.Popen(
                    [sys.executable, *worker, names, str(self.config), *["--resume"] * resume],
                    cwd=self.directory,
                    stdout=log,
                    stderr=log,
                    env=variables,
                )

    def kill(self, *roles: str) -> None:
        """SIGKILL to all of them, at once."""
        dying = [self.processes.pop(role) for role in roles]
        for process in dying:
            process.kill()
        for process in dying:
            process.wait(timeout=10)

    def terminate(self, role: str) -> float:
        """SIGTERM; returns how long the process took to leave, which it must with code 0."""
        process = self.processes.pop(role)
        started = time.monotonic()
        process.terminate()
        try:
            code = process.wait(timeout=LEAVE_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=10)
            raise AssertionError(
                f"{role} was still there {LEAVE_LIMIT_S} s after SIGTERM:\n{self.log(role)}"
            ) from None
        assert code == 0, f"{role} left with {code}:\n{self.log(role)}"
        assert "worker_cut_off" not in self.log(role), f"{role} did not leave by itself"
        return time.monotonic() - started

    def wait_exit(self, role: str, *, limit_s: float) -> int:
        """Waits for a process to leave by itself; returns its exit code."""
        process = self.processes[role]
        try:
            code = process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{role} was still there after {limit_s} s:\n{self.log(role)}"
            ) from None
        del self.processes[role]
        return code

    def log(self, role: str, tail: int = 3000) -> str:
        return (self.directory / f"{role}.log").read_text(errors="replace")[-tail:]

    def events(self, role: str) -> list[dict[str, Any]]:
        """What a process logged, one table a line; lines that are not JSON are left out."""
        found = []
        for line in (self.directory / f"{role}.log").read_text(errors="replace").splitlines():
            with suppress(ValueError):
                found.append(json.loads(line))
        return [one for one in found if isinstance(one, dict)]

    def sluice(
        self,
        *arguments: str,
        limit_s: float = 60.0,
        code: int = 0,
        environment: Mapping[str, str | None] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run one command to its end; `code` is what it must exit with. A variable of None is not set."""
        variables = {**self.environment, **(environment or {})}
        done = subprocess.run(
            [sys.executable, "-m", "ops.cli", *arguments],
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=limit_s,
            env={name: value for name, value in variables.items() if value is not None},
        )
        assert done.returncode == code, f"{arguments}: {done}"
        return done

    # --- what is on record ---

    def query(self, sql: str, **values: object) -> list[dict[str, Any]]:
        with psycopg.connect(self.postgres_url, row_factory=dict_row) as connection:
            return connection.execute(sql.encode(), values).fetchall()

    def wait_for(self, sql: str, *, limit_s: float) -> None:
        """Until the query's first column is true."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            rows = self.query(sql)
            if rows and next(iter(rows[0].values())):
                return
            for role, process in self.processes.items():
                if process.poll() not in (None, 0, -signal.SIGKILL):
                    raise AssertionError(
                        f"{role} ended with {process.returncode}:\n{self.log(role)}"
                    )
            time.sleep(0.2)
        tails = "\n".join(f"--- {role}\n{self.log(role, 1500)}" for role in self.processes)
        raise AssertionError(f"not true within {limit_s} s: {sql}\n{tails}")

    def wait_step(self, step: int, *, limit_s: float = 120) -> None:
        """Until the step is committed and recorded."""
        self.wait_for(
            f"select max(step) >= {step} from learner_step"
            f" where run_id = '{self.run}' and committed_at is not null",
            limit_s=limit_s,
        )

    def newest_step(self) -> int:
        """The newest step on record; 0 before the first."""
        return self.query("select coalesce(max(step), 0) as step from learner_step")[0]["step"]

    def wait_end(self, *, limit_s: float = 120) -> None:
        self.wait_for(
            f"select status not in ('running', 'draining') from run where run_id = '{self.run}'",
            limit_s=limit_s,
        )

    def stop(self, *, limit_s: int = 120) -> int:
        """Ends the run by `sluice stop`; returns how many steps it took, each of which is on record."""
        self.sluice("stop", self.run, "--wait", str(limit_s), limit_s=limit_s + 15)
        self.wait_end(limit_s=30)
        assert self.status() == "stopped"
        steps = [row["step"] for row in self.query("select step from learner_step order by step")]
        assert steps == list(range(1, len(steps) + 1))
        return len(steps)

    def incidents(self) -> set[str]:
        """Their kinds."""
        return {row["kind"] for row in self.query("select kind from incident")}

    def empty_steps(self, *reasons: str) -> set[tuple[str, str]]:
        """(kind, detail) of incidents of steps for which nothing was left, all dropped for these reasons."""
        steps = self.query(
            "select dropped_step as step from prompt_group where dropped_step is not null"
            " group by 1 having bool_and(drop_reason = any(%(reasons)s))",
            reasons=list(reasons),
        )
        return {("step_skipped", f"step {row['step']}: nothing_left") for row in steps}

    def waits(self) -> list[str]:
        """What the workers say that they wait for."""

        async def ask(bus: Bus) -> list[str]:
            return [wait["for"] for status in await bus.ask_status(0.5) for wait in status["waits"]]

        return self.with_bus(ask)

    def status(self) -> str:
        return self.query("select status from run where run_id = %(run)s", run=self.run)[0][
            "status"
        ]

    def with_bus(self, work: Any) -> Any:
        """The result of `await work(bus)`."""

        async def on_bus() -> Any:
            bus: JetStreamBus = await connect(NatsSettings(url=self.nats_url), self.run)
            try:
                return await work(bus)
            finally:
                await bus.close()

        return asyncio.run(on_bus())

    def proofs(self) -> Mapping[str, str]:
        """Claims that do not hold, with what was found; empty when all nine do."""
        proofs = self.with_bus(lambda bus: verify(self.postgres_url, self.run, bus))
        assert len(proofs) == 9
        return {proof.claim: f"{proof.detail} {proof.examples}" for proof in proofs if not proof.ok}
