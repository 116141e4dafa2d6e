"""A deployment in small: real NATS, real Postgres, every role a process of its own, any of them killable."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import psycopg
from psycopg.rows import dict_row

import broker.embedded
import store.embedded
from broker.jetstream import connect
from broker.settings import NatsSettings
from store.audit import verify
from store.schema import upgrade

ROOT = Path(__file__).parents[2]
ROLES = ("dispatcher", "rollout", "verifier", "policy", "learner", "recorder")

CONFIG = """
[run]
id = "{run}"
name = "e2e"
seed = 7
steps = {steps}
groups_per_step = 4
group_size = 4
{run_extra}

[model.tiny]
characters = "0123456789abcdefghijklmnopqrstuvwxyz+-*=()<>?:;,.!&|~ "
hidden = 32
layers = 2
heads = 2
kv_heads = 2
intermediate = 64
positions = 64

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

[sampling]
max_tokens = 12

[warmup]
steps = {warmup}
batch_size = 32
learning_rate = 3e-3

[learner]
learning_rate = 1e-3
checkpoint_every = {checkpoint_every}

[nats]
url = "{nats}"
log_bytes = 67108864

[store]
url = "{postgres}"
{extra}
"""


class Cluster:
    """Services and role processes of one run under one directory; use as a context manager."""

    def __init__(self, directory: Path, *, run: str = "e2e", steps: int = 4, warmup: int = 20, **options: object):
        self.directory = directory
        self.run = run
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._options = {
            "steps": steps,
            "warmup": warmup,
            "checkpoint_every": 2,
            "eval_items": 8,
            "run_extra": "max_staleness = 2",
            "extra": "",
        } | options

    def __enter__(self) -> "Cluster":
        self.directory.mkdir(parents=True, exist_ok=True)
        self.nats = broker.embedded.start(self.directory / "nats", NatsSettings(sync_interval="2m"))
        self.postgres = store.embedded.start(self.directory / "postgres")
        upgrade(self.postgres.url)
        self.config = self.directory / "config.toml"
        self.config.write_text(
            CONFIG.format(
                run=self.run,
                nats=self.nats.url,
                postgres=self.postgres.url,
                **self._options,
            )
        )
        return self

    def __exit__(self, *_: object) -> None:
        for role in list(self.processes):
            self.kill(role)
        self.postgres.stop()
        self.nats.stop()

    def start(self, *roles: str, command: tuple[str, ...] = ("-m", "ops.cli")) -> None:
        """Start role processes; `command` may name a script that wraps the worker."""
        for role in roles:
            with (self.directory / f"{role}.log").open("ab") as log:
                self.processes[role] = subprocess.Popen(
                    [sys.executable, *command, "worker", role.split("#")[0], str(self.config)],
                    cwd=self.directory,
                    stdout=log,
                    stderr=log,
                    env=os.environ | {"PYTHONPATH": str(ROOT)},
                )

    def signal(self, role: str, number: int) -> None:
        self.processes[role].send_signal(number)

    def kill(self, role: str) -> None:
        process = self.processes.pop(role)
        process.kill()
        process.wait(timeout=10)

    def exit_code(self, role: str, *, limit_s: float) -> int:
        """Waits for a process to leave by itself."""
        return self.processes[role].wait(timeout=limit_s)

    def query(self, sql: str, **values: object) -> list[Mapping[str, object]]:
        url = self.postgres.url.replace("postgresql+psycopg://", "postgresql://")
        with psycopg.connect(url, row_factory=dict_row) as connection:
            return connection.execute(sql, values).fetchall()

    def wait_for(self, sql: str, *, limit_s: float) -> None:
        """Until the query's first column is true."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            rows = self.query(sql)
            if rows and next(iter(rows[0].values())):
                return
            for role, process in self.processes.items():
                if process.poll() not in (None, 0, -signal.SIGKILL):
                    raise AssertionError(f"{role} ended with {process.returncode}:\n{self.log(role)}")
            time.sleep(0.2)
        tails = "\n".join(f"--- {role}\n{self.log(role, 1500)}" for role in self.processes)
        raise AssertionError(f"not true within {limit_s} s: {sql}\n{tails}")

    def wait_end(self, *, limit_s: float = 120) -> None:
        self.wait_for(
            f"select status not in ('running', 'draining') from run where run_id = '{self.run}'",
            limit_s=limit_s,
        )

    def log(self, role: str, tail: int = 3000) -> str:
        return (self.directory / f"{role}.log").read_text(errors="replace")[-tail:]

    def proofs(self) -> dict[str, str]:
        """Claims that do not hold, with what was found; empty when all nine do."""

        async def prove() -> dict[str, str]:
            bus = await connect(NatsSettings(url=self.nats.url), self.run)
            try:
                proofs = await verify(self.postgres.url, self.run, bus)
            finally:
                await bus.close()
            assert len(proofs) == 9
            return {proof.claim: f"{proof.detail} {proof.examples}" for proof in proofs if not proof.ok}

        return asyncio.run(prove())
