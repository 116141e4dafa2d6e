"""The embedded server's directory: one owner, the same address after a restart, nothing left over."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from broker.errors import BadConfiguration, Unreachable
from tests.integration.conftest import Start


def test_a_restart_keeps_port_and_password_whatever_the_folder_is_called(
    start: Start, tmp_path: Path
):
    first = start(tmp_path / "Jürgen's 日本")
    url = first.url
    first.stop()

    second = start(tmp_path / "Jürgen's 日本")
    second.stop()

    assert second.url == url


def test_credentials_are_readable_by_the_owner_alone(start: Start, tmp_path: Path):
    server = start(tmp_path / "n")
    server.stop()

    for name in ("nats.conf", "endpoint.json"):
        assert (tmp_path / "n" / name).stat().st_mode & 0o077 == 0


def test_a_directory_belongs_to_one_process_at_a_time(start: Start, tmp_path: Path):
    server = start(tmp_path / "n")

    with pytest.raises(BadConfiguration, match="in use"):
        start(tmp_path / "n")

    server.stop()
    start(tmp_path / "n").stop()


def test_a_server_left_over_by_a_killed_supervisor_is_ended_first(start: Start, tmp_path: Path):
    directory = tmp_path / "n"
    supervisor = (
        "import os, pathlib, sys; from broker import embedded; from broker.settings import NatsSettings; "
        "embedded.start(pathlib.Path(sys.argv[1]), NatsSettings()); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", supervisor, str(directory)], timeout=60)
    orphan = json.loads((directory / "endpoint.json").read_text())["pid"]
    assert Path(f"/proc/{orphan}").exists()

    server = start(directory)

    command = Path(f"/proc/{orphan}/cmdline")
    assert not command.exists() or b"nats-server" not in command.read_bytes()
    server.stop()


def test_a_server_that_cannot_start_says_why(start: Start, tmp_path: Path):
    with pytest.raises(Unreachable, match="sync_interval"):
        start(tmp_path / "n", sync_interval="9999999999h")  # more than it can count


def test_a_killed_server_is_seen_and_restarted(start: Start, tmp_path: Path):
    server = start(tmp_path / "n")
    os.kill(server.pid, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while server.is_running and time.monotonic() < deadline:
        time.sleep(0.01)
    dead = not server.is_running

    server.restart()

    assert dead
    assert server.is_running
    server.stop()


def test_the_server_waits_for_its_turn_on_a_core_and_its_starter_does_not(
    start: Start, tmp_path: Path
):
    before = os.sched_getscheduler(0)

    server = start(tmp_path / "n")

    policies = {
        os.sched_getscheduler(int(t.name)) for t in Path(f"/proc/{server.pid}/task").iterdir()
    }
    assert policies == {os.SCHED_BATCH}
    assert os.sched_getscheduler(0) == before != os.SCHED_BATCH
