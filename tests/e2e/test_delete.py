"""Deleting a run takes what the broker and the disk hold of it, and nothing of anybody else."""

import json
import time
from collections.abc import Callable

from broker.bus import Bus
from broker.settings import NatsSettings
from broker.wire import api
from tests.builders import a_request
from tests.e2e.cluster import Cluster

LOG_BYTES = 67_108_864
START_LIMIT_S = 60.0


def begin(run: Cluster) -> None:
    """What a run that was begun and left leaves: a folder, messages, objects, a row of history."""
    (run.run_dir / "checkpoints").mkdir(parents=True)
    (run.run_dir / "config.toml").write_text(run.config.read_text())

    async def write(bus: Bus) -> None:
        await bus.ensure_logs(NatsSettings(log_bytes=LOG_BYTES))  # type: ignore[attr-defined]
        await bus.publish(a_request())
        await bus.put_object("weights/1", b"1" * 1000)

    run.with_bus(write)


def streams(run: Cluster) -> list[str]:
    """Of the run, by the server's own word."""

    async def ask(bus: Bus) -> list[str]:
        page = await api(bus._wire, "STREAM.NAMES", {"subject": f"sluice.{bus.run}.>"})  # type: ignore[attr-defined]
        objects = await api(bus._wire, "STREAM.NAMES", {"subject": f"$O.{bus.run}_OBJECTS.>"})  # type: ignore[attr-defined]
        return [*(page.get("streams") or []), *(objects.get("streams") or [])]

    return run.with_bus(ask)


def test_a_deleted_run_is_gone_from_broker_and_disk_and_the_others_stay(
    start_run: Callable[..., Cluster],
):
    gone, kept = start_run("gone"), start_run("kept")
    begin(gone)
    begin(kept)
    history = "insert into run (run_id, name, status, reason, last_event_id)"
    values = "values (%(run)s, 'e2e', 'running', '', 0) returning run_id"
    gone.query(f"{history} {values}", run=gone.run)
    before = len(streams(gone))

    beginning = gone.sluice("runs", "--delete", gone.run[:-1], code=2)
    done = gone.sluice("runs", "--delete", gone.run)

    assert "expected a whole run id" in beginning.stderr
    assert f"{gone.run}: logs, objects and {gone.run_dir} deleted" in done.stdout
    assert not gone.run_dir.exists()
    assert (before, streams(gone)) == (8, [])
    assert gone.status() == "running"
    assert kept.run_dir.exists()
    assert len(streams(kept)) == before
    assert kept.with_bus(lambda bus: bus.list_objects("")) == ["weights/1"]
    assert "no run" in gone.sluice("runs", "--delete", gone.run, code=2).stderr


def test_a_run_that_workers_began_is_known_where_they_were_started(
    start_run: Callable[..., Cluster],
):
    run = start_run("apart")
    run.start("verifier")
    deadline = time.monotonic() + START_LIMIT_S
    while not (run.run_dir / "config.toml").exists():
        assert time.monotonic() < deadline, run.log("verifier")
        time.sleep(0.2)

    (listed,) = json.loads(run.sluice("runs", "--json").stdout)
    status = json.loads(run.sluice("status", run.run, "--json").stdout)

    assert (listed["run_id"], listed["status"]) == (run.run, "begun by workers")
    assert [process["role"] for process in status["processes"]] == ["verifier"]
    assert "postgresql://" not in (run.run_dir / "config.toml").read_text()


def test_a_run_at_work_is_not_deleted(start_run: Callable[..., Cluster]):
    run = start_run("busy")
    begin(run)
    run.start("verifier")
    deadline = time.monotonic() + START_LIMIT_S
    while not run.with_bus(lambda bus: bus.ask_status(0.3)):
        assert time.monotonic() < deadline, run.log("verifier")

    refused = run.sluice("runs", "--delete", run.run, code=2)

    assert f"run {run.run}: verifier still at work" in refused.stderr
    assert run.run_dir.exists()
    assert len(streams(run)) == 8


def test_a_run_of_which_the_broker_holds_nothing_is_said_to_be_so(
    start_run: Callable[..., Cluster],
):
    run = start_run("bare")
    run.run_dir.mkdir(parents=True)
    (run.run_dir / "config.toml").write_text(run.config.read_text())

    done = run.sluice("runs", "--delete", run.run)

    assert "the broker held nothing of it; and" in done.stdout
    assert not run.run_dir.exists()
