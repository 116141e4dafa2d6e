"""A log without replicas is read without the JetStream API, at less cost to the server, and alike."""

import uuid

import pytest

from broker import jetstream
from broker.errors import SluiceError
from broker.jetbus import JetStreamBus
from broker.settings import NatsSettings
from broker.topology import Log, kind_subjects, stream_name, subject
from broker.wire import read_direct, read_message
from tests.builders import a_key, a_request
from tests.contract.logs import group_id


async def test_a_log_is_read_alike_directly_and_through_the_api(bus: JetStreamBus):
    requests = [a_request(group=a_key(group_id(n), domain=f"d{n % 2}")) for n in range(1, 5)]
    for request in requests:
        await bus.publish(request, expect_subject=0)
    await bus.purge(Log.REQUESTS, 1)
    every = kind_subjects(bus.run, "group_requested")
    questions: list[dict[str, object]] = [
        {"seq": 2},
        {"seq": 1},
        {"seq": 9},
        {"last_by_subj": every},
        {"last_by_subj": subject(bus.run, requests[1])},
        {"last_by_subj": subject(bus.run, requests[0])},
    ]
    stream, wire = stream_name(bus.run, Log.REQUESTS), bus._wire  # pyright: ignore[reportPrivateUsage]

    direct = [await read_direct(wire, Log.REQUESTS, stream, q) for q in questions]
    through_api = [await read_message(wire, Log.REQUESTS, stream, q) for q in questions]

    assert direct == through_api
    assert [found and found.sequence for found in direct] == [2, None, None, 4, 2, None]


async def test_a_log_that_does_not_exist_is_an_error_and_not_empty(nats_url: str):
    nobody = await jetstream.connect(NatsSettings(url=nats_url), f"t{uuid.uuid4().hex[:12]}")

    with pytest.raises(SluiceError, match="stream not found"):
        await nobody.get(Log.REQUESTS, 1)
    await nobody.close()
