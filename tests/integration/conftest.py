"""Services, and a run's logs, that one test has to itself."""

import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from broker import embedded, jetstream
from broker.embedded import EmbeddedNats
from broker.errors import BadConfiguration
from broker.jetbus import JetStreamBus
from broker.settings import NatsSettings

Start = Callable[..., EmbeddedNats]
"""(directory, **settings) -> a NATS server that is stopped after the test, whatever happens."""


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[JetStreamBus]:
    """The logs of a run of its own, which are gone afterwards."""
    settings = NatsSettings(url=nats_url)
    opened = await jetstream.connect(settings, f"t{uuid.uuid4().hex[:12]}")
    await opened.ensure_logs(settings)
    yield opened
    await opened.delete_run()
    await opened.close()


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
