"""A Postgres server of one's own: survives crashes, is shared, leaves when nobody needs it."""

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from broker.errors import BadConfiguration
from store import embedded
from store.embedded import EmbeddedPostgres
from tests.processes import alive


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sluice-embedded-") as name:
        yield Path(name)


def wait_for_death(pid: int) -> None:
    deadline = time.monotonic() + 20
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(pid)


def remember(server: EmbeddedPostgres, number: int) -> list[int]:
    with psycopg.connect(server.url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS seen (number integer)")
        connection.execute("INSERT INTO seen VALUES (%s)", [number])
        return [n for (n,) in connection.execute("SELECT number FROM seen ORDER BY 1")]


def test_data_survive_a_stop_a_kill_and_a_pid_file_that_names_another_program(directory: Path):
    first = embedded.start(directory)
    assert remember(first, 1) == [1]
    first.stop()
    wait_for_death(first.pid)

    second = embedded.start(directory)
    assert second.url == first.url
    assert remember(second, 2) == [1, 2]
    os.kill(second.pid, signal.SIGKILL)
    wait_for_death(second.pid)
    pid_file = directory / "data" / "postmaster.pid"
    lines = pid_file.read_text().splitlines(keepends=True)
    pid_file.write_text("".join([f"{os.getpid()}\n", *lines[1:]]))
    second.stop()

    third = embedded.start(directory)
    try:
        assert remember(third, 3) == [1, 2, 3]
    finally:
        third.stop()


def test_two_users_share_a_server_and_the_last_one_stops_it(directory: Path):
    first, second = embedded.start(directory), embedded.start(directory)

    first.stop()
    first.stop()
    still_there = alive(second.pid)
    second.stop()

    assert first.pid == second.pid
    assert still_there
    wait_for_death(second.pid)


def test_an_initialisation_that_was_cut_off_is_made_again(directory: Path):
    (directory / "data.new").mkdir()
    (directory / "data.new" / "PG_VERSION").write_text("18\n")

    server = embedded.start(directory)
    try:
        assert remember(server, 1) == [1]
    finally:
        server.stop()


@pytest.mark.parametrize("name", ['"quoted"', "$HOME", "back\\slash", "`true`"])
def test_a_folder_that_a_shell_would_read_otherwise_is_refused(directory: Path, name: str):
    with pytest.raises(BadConfiguration, match="choose another --runs folder"):
        embedded.start(directory / name)
    assert not (directory / name).exists()


def test_a_folder_with_a_long_or_odd_name_works(directory: Path):
    deep = directory / ("it's a long name; " * 6).strip()

    server = embedded.start(deep)
    try:
        assert remember(server, 1) == [1]
        socket = Path(server.url.partition("host=")[2])
        assert len(os.fsencode(socket)) < 100
        assert socket.stat().st_mode & 0o077 == 0
    finally:
        server.stop()
    assert not socket.exists(), "nothing is left behind in the folder of temporary files"
