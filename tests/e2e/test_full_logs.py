"""Logs a fraction of what the run writes: publishers wait, nothing is dropped, and it comes to its end."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from broker import embedded
from broker.bus import Bus
from broker.jetstream import connect
from broker.settings import NatsSettings
from broker.topology import Log
from store.audit import verify
from tests.e2e.cluster import Cluster

QUOTA = 1 << 20
OPTIONS = {
    # More than fit in any of the logs.
    "steps": 100,
    "log_bytes": QUOTA,
    "checkpoint_every": 10,
    # Short prompts, so that a checkpoint interval of the largest groups fits.
    "extra": '[policy]\nadmit = ["dynamic_sampling"]\n[prompt]\nmax_tokens = 16',
}
GROUP_LOGS = (Log.REQUESTS, Log.GENERATED, Log.VERIFIED, Log.ANNOTATED)


def test_a_run_larger_than_its_logs_waits_for_its_recorder_and_outlives_a_purge(
    start_run: Callable[..., Cluster],
):
    run = start_run("full", **OPTIONS)
    run.with_bus(lambda bus: bus.ensure_logs(NatsSettings(log_bytes=QUOTA)))
    run.start("dispatcher,verifier,policy", "learner", "rollout")
    wait_until(run, lambda waits, states: any("space in" in wait for wait in waits), limit_s=180)
    states = look(run)[1]
    assert [state.first for state in states.values()] == [1] * len(GROUP_LOGS)
    assert max(state.bytes for state in states.values()) > 0.87 * QUOTA

    run.start("recorder")
    wait_until(run, lambda waits, states: all(s.first > 1 for s in states.values()), limit_s=60)
    for role in ("dispatcher,verifier,policy", "learner", "rollout"):
        run.processes[role].send_signal(signal.SIGKILL)
        run.wait_exit(role, limit_s=10)
    run.start("dispatcher,verifier,policy", "learner", "rollout")
    run.wait_end(limit_s=180)

    assert run.status() == "finished"
    assert run.proofs() == {}
    ninth = run.with_bus(lambda bus: verify(run.postgres_url, run.run, bus))[-1]
    assert all(f"from {state.first}" in ninth.detail for state in look(run)[1].values())
    assert "early checkpoint" in {one["event"] for one in run.events("learner")}
    assert "purged" in {one["event"] for one in run.events("dispatcher,verifier,policy")}
    groups = run.query("select count(*) as n, max(request_seq) as last from prompt_group")[0]
    assert groups["n"] == groups["last"]  # requests are numbered without gaps
    assert run.query("select kind, detail from incident") == []


def test_a_run_on_a_full_store_waits_purges_and_goes_on_when_there_is_space(
    tmp_path: Path, postgres_url: str
):
    server = embedded.start(
        tmp_path / "nats", NatsSettings(sync_interval="2m", store_bytes=24 << 20)
    )
    run = Cluster(tmp_path, nats_url=server.url, postgres_url=postgres_url, run="store", **OPTIONS)
    try:
        with run:
            run.start("dispatcher", "verifier,policy,recorder", "learner", "rollout")
            run.wait_step(2)
            # Before there is any floor: only somebody else can make room.
            fill(run)
            wait_until(run, lambda waits, states: any("space in" in w for w in waits), limit_s=30)
            empty(run)
            run.wait_step(12)
            fill(run)
            wait_until(run, lambda *_: purges_of_a_full_store(run) > 0, limit_s=30)
            empty(run)
            run.wait_end(limit_s=180)
            assert run.status() == "finished"
            assert run.proofs() == {}
            assert run.query("select kind, detail from incident") == []
    finally:
        server.stop()


def fill(run: Cluster) -> None:
    """Until the store takes nothing more: another run's objects have no quota."""

    async def put() -> None:
        hog = await connect(NatsSettings(url=run.nats_url), "hog")
        await hog.ensure_logs(NatsSettings(log_bytes=QUOTA))
        with suppress(TimeoutError):
            while await hog.has_room():
                async with asyncio.timeout(2):
                    await hog.put_object(f"{time.monotonic_ns()}", os.urandom(256 * 1024))
        await hog.close()

    asyncio.run(put())


def empty(run: Cluster) -> None:
    async def delete() -> None:
        hog = await connect(NatsSettings(url=run.nats_url), "hog")
        await hog.delete_run()
        await hog.close()

    asyncio.run(delete())


def purges_of_a_full_store(run: Cluster) -> int:
    return sum(one.get("store_full") is True for one in run.events("dispatcher"))


def look(run: Cluster) -> tuple[list[str], Mapping[Log, Any]]:
    """What the processes wait for, and how the logs of groups stand."""

    async def ask(bus: Bus) -> tuple[list[str], Mapping[Log, Any]]:
        statuses: list[Any] = list(await bus.ask_status(0.3))
        waits = [wait["for"] for status in statuses for wait in status["waits"]]
        return waits, {log: await bus.state(log) for log in GROUP_LOGS}

    return run.with_bus(ask)


def wait_until(run: Cluster, holds: Callable[..., bool], *, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not holds(*(found := look(run))):
        assert time.monotonic() < deadline, f"{found}\n{run.log('learner')}"
        time.sleep(0.3)
