"""Services that one test has to itself."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker import embedded
from broker.embedded import EmbeddedNats
from broker.errors import BadConfiguration
from broker.settings import NatsSettings

Start = Callable[..., EmbeddedNats]
"""(directory, **settings) -> a NATS server that is stopped after the test, whatever happens."""


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[EmbeddedNats] = []
    try:
        embedded.find_binary()
    except BadConfiguration as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))

    def begin(directory: Path, **changes: object) -> EmbeddedNats:
        server = embedded.start(directory, NatsSettings.model_validate(changes))
        started.append(server)
        return server

    yield begin
    for server in started:
        server.stop()
