"""Groups a second through all roles, nothing computed, against raw JetStream with the same messages.

Every role is a process of its own and works as it always does, but for an engine that answers at once and
a trainer that changes nothing. Also CPU time a group and role, which says what bounds it.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from broker import jetstream
from broker.bus import Bus
from broker.messages import StepCommitted
from broker.settings import NatsSettings
from broker.topology import Log, kind_subjects
from tests.bench import _raw_jetstream
from tests.bench.result import Result
from tests.bench.servers import fresh_database, nats, postgres

ROOT = Path(__file__).parents[2]
STEPS, GROUPS, SIZE, TOKENS = 75, 16, 8, 512
WARM_STEPS = 15
"""Before the clock runs."""
RAW_GROUPS = 1_000
LIMIT = 150.0
"""Groups/s on 2 cores, the audit's recorder left out."""
LIMIT_S = 300.0
ROLES = ("dispatcher", "rollout", "verifier", "policy", "learner")
CONFIG = f"""
[run]
id = "pipeline"
steps = {STEPS}
groups_per_step = {GROUPS}
group_size = {SIZE}
max_staleness = 6
no_progress_steps = 1_000_000

[model.tiny]
characters = "0123456789abcdefghijklmnopqrstuvwxyz+-*=()<>?:;,.!&|~ "
hidden = 8
layers = 1
heads = 1
kv_heads = 1
intermediate = 8
positions = 1024

[[source]]
domain = "echo"
generator = "ordering"
options = {{length = 3, letters = 8}}
verifier = {{name = "exact"}}
eval_items = 0

[sampling]
max_tokens = {TOKENS}

[policy]
admit = []
"""


@dataclass(frozen=True)
class Measured:
    groups_per_s: float
    cpu_ms: dict[str, float]
    """Role or server -> CPU time a group."""
    sizes: tuple[int, ...]
    """Bytes of a group's message in each log of the flow."""


def measure() -> list[Result]:
    results: list[Result] = []
    what = f"{SIZE} x {TOKENS} tokens"
    for sync, recorded in (("always", False), ("2m", False), ("2m", True)):
        found, raw = once(sync, recorded=recorded)
        roles = "with the recorder" if recorded else "broker path"
        results.append(
            Result(
                "pipeline", f"groups of {what}, {roles}, sync {sync}", "groups/s",
                found.groups_per_s, raw, limit=None if recorded else LIMIT,
            )
        )  # fmt: skip
        if sync != "always":
            results += [
                Result("pipeline", f"CPU of {role}, {roles}", "ms/group", milliseconds)
                for role, milliseconds in found.cpu_ms.items()
            ]
    return results


def once(sync: str, *, recorded: bool) -> tuple[Measured, float]:
    """The pipeline's figures, and raw JetStream's groups/s on the same server."""
    with ExitStack() as stack:
        url = stack.enter_context(nats(NatsSettings(sync_interval=sync)))
        store = fresh_database(stack.enter_context(postgres()), "b") if recorded else ""
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-bench-")))
        (folder / "config.toml").write_text(CONFIG)
        roles = (*ROLES, "recorder") if recorded else ROLES
        with processes(roles, folder, url, store) as running:
            found = asyncio.run(_follow(url, running))
        sizes = found.sizes
        raw = asyncio.run(_raw_jetstream.groups_per_s(url, sizes, RAW_GROUPS))
        return found, raw


@contextmanager
def processes(
    roles: tuple[str, ...], folder: Path, url: str, store: str
) -> Iterator[dict[str, psutil.Process]]:
    variables = os.environ | {
        "PYTHONPATH": str(ROOT),
        "SLUICE_NATS__URL": url,
        "SLUICE_STORE__URL": store,
        "SLUICE_RUNS": str(folder / "runs"),
    }
    started: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for role in roles:
            with (folder / f"{role}.log").open("wb") as log:
                started[role] = subprocess.Popen(
                    [sys.executable, "-m", "tests.bench._pipeline_role", role, "config.toml"],
                    cwd=folder, stdout=log, stderr=log, env=variables,
                )  # fmt: skip
        yield {role: psutil.Process(process.pid) for role, process in started.items()}
    except TimeoutError:
        tails = [f"{r}: {(folder / f'{r}.log').read_text()[-1500:]}" for r in roles]
        raise TimeoutError(f"no {STEPS} steps within {LIMIT_S:g} s\n" + "\n".join(tails)) from None
    finally:
        for process in started.values():
            process.kill()
            process.wait(timeout=10)


async def _follow(url: str, running: dict[str, psutil.Process]) -> Measured:
    """From the commit of WARM_STEPS to the last one's."""
    settings = NatsSettings(url=url)
    bus = await jetstream.connect(settings, "pipeline")
    try:
        await bus.ensure_logs(settings)
        cursor = await bus.cursor(Log.LEDGER, 0, [kind_subjects(bus.run, StepCommitted.KIND)])
        times: dict[int, int] = {}
        before: dict[str, float] = {}
        async with asyncio.timeout(LIMIT_S):
            while len(times) < STEPS:
                for stored in await cursor.read(10, 1.0):
                    event = stored.event()
                    if isinstance(event, StepCommitted):
                        times[event.step] = event.at_us
                if len(times) >= WARM_STEPS and not before:
                    before, begun = cpu_seconds(running), max(times)
        after = cpu_seconds(running)
        seconds = (times[STEPS] - times[begun]) / 1e6
        groups = (STEPS - begun) * GROUPS
        cpu_ms = {role: 1000 * (after[role] - before[role]) / groups for role in after}
        return Measured(groups / seconds, cpu_ms, await _sizes(bus))
    finally:
        await bus.close()


def cpu_seconds(running: dict[str, psutil.Process]) -> dict[str, float]:
    """User and system time of each process with its children, and of the NATS server."""
    found = {}
    for role, process in running.items():
        family = [process, *process.children(recursive=True)]
        found[role] = sum(sum(one.cpu_times()[:2]) for one in family)
    servers = [p for p in psutil.Process().children(recursive=True) if "nats-server" in p.name()]
    found["nats-server"] = sum(sum(server.cpu_times()[:2]) for server in servers)
    return found


async def _sizes(bus: Bus) -> tuple[int, ...]:
    """Mean bytes of a stored message, body and headers, of each log that groups pass through."""
    sizes = []
    for log in (Log.REQUESTS, Log.GENERATED, Log.VERIFIED, Log.ANNOTATED):
        state = await bus.state(log)
        sizes.append(state.bytes // state.messages)
    return tuple(sizes)
