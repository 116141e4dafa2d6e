"""Services that tests share. A missing one skips locally and fails in CI."""

import os
from collections.abc import Iterator

import pytest

from broker import embedded
from broker.errors import BadConfiguration
from broker.settings import NatsSettings


@pytest.fixture(scope="session")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A NATS server of this test session's own, with user and password in the URL."""
    try:
        embedded.find_binary()
    except BadConfiguration as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    # A power loss cannot happen to a test: no wait for the disk.
    settings = NatsSettings(sync_interval="2m")
    server = embedded.start(tmp_path_factory.mktemp("nats"), settings)
    try:
        yield server.url
    finally:
        server.stop()
