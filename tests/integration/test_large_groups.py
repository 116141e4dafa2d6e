"""Groups of 16 x 4,096 tokens travel through the stages whole, whatever a server takes in one message."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from broker import embedded, jetstream
from broker.arrays import logprob_array, token_array, unpack
from broker.jetbus import JetStreamBus
from broker.messages import Generation, GroupAnnotated, GroupGenerated, GroupRequested, Sampling
from broker.settings import NatsSettings
from broker.telemetry import Health
from broker.topology import H_GROUP, H_OBJECT, Log
from tests.builders import a_generated, a_generation, a_request
from tests.contract.logs import read_all
from tests.policy_run import poll, work
from workers.verifiers import worker as verifier
from workers.verifiers.settings import VerifierSettings

SIZE, TOKENS, GROUPS = 16, 4096, 4
LOG_BYTES = 128 << 20
LIMIT_S = 60.0
FLOW = (Log.REQUESTS, Log.GENERATED, Log.VERIFIED, Log.ANNOTATED)


def a_large_answer(index: int, rng: np.random.Generator) -> Generation:
    """Every other one is right; the wrong ones are as long in text as in tokens."""
    text = "2" if index % 2 else "wrong " * TOKENS
    ids = token_array(rng.integers(0, 1 << 17, TOKENS))
    return a_generation(
        index, tokens=TOKENS, token_ids=ids, logprobs=logprob_array(-rng.random(TOKENS)), text=text
    )


def large_groups() -> list[tuple[GroupRequested, GroupGenerated]]:
    rng = np.random.default_rng(7)
    sampling = Sampling(temperature=1.0, max_tokens=TOKENS)
    requests = [
        a_request(f"{n:08d}-0-0", size=SIZE, sampling=sampling) for n in range(1, GROUPS + 1)
    ]
    return [
        (
            request,
            a_generated(request, generations=tuple(a_large_answer(i, rng) for i in range(SIZE))),
        )
        for request in requests
    ]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[[int], str]]:
    """Payload limit -> URL of a server; limits below those that we would set belong to somebody else's."""
    with ExitStack() as stack:

        def start(payload: int) -> str:
            settings = NatsSettings(sync_interval="2m")
            changed = settings.model_copy(update={"max_payload_bytes": payload})
            started = embedded.start(tmp_path / "n", changed)
            stack.callback(started.stop)
            return started.url

        yield start


@asynccontextmanager
async def connections(url: str) -> AsyncIterator[list[JetStreamBus]]:
    """For whoever publishes by hand, the verifier, and the policy."""
    settings = NatsSettings(url=url, log_bytes=LOG_BYTES)
    async with AsyncExitStack() as stack:
        buses = [await jetstream.connect(settings, "large") for _ in range(3)]
        for bus in buses:
            stack.push_async_callback(bus.close)
        await buses[0].ensure_logs(settings)
        yield buses


@pytest.mark.parametrize(
    ("payload", "stowed"), [(8 << 10, True), (1 << 19, True), (8 << 20, False)], ids=str
)
async def test_large_groups_travel_whole_and_leave_no_object_behind(
    payload: int, stowed: bool, server: Callable[[int], str]
):
    url, stop, groups = server(payload), asyncio.Event(), large_groups()
    async with connections(url) as (ours, judging, deciding), asyncio.timeout(LIMIT_S):
        stages = [
            asyncio.create_task(
                verifier.run(
                    judging, settings=VerifierSettings(), health=Health("verifier"), stop=stop
                )
            ),
            asyncio.create_task(work(deciding, stop)),
        ]
        for event in (event for pair in groups for event in pair):
            await ours.publish(event, expect_subject=0)

        async def all_decided() -> bool:
            return (await ours.state(Log.ANNOTATED)).messages == GROUPS

        await poll(all_decided)
        stored = await read_all(ours, Log.ANNOTATED, GROUPS)
        stop.set()
        await asyncio.gather(*stages)
        named = [await ours.list_objects(f"groups/{log}/") for log in FLOW[1:]]
        for log in FLOW:
            await ours.purge(log, (await ours.state(log)).last)
        left = await ours.list_objects("groups/")

    decided = {one.headers[H_GROUP]: one for one in stored}
    # Which group is judged first is chance.
    for _, sent in groups:
        one = decided[sent.group.group_id]
        event = one.event()
        assert isinstance(event, GroupAnnotated)
        assert event.outcome == "admitted"
        assert (H_OBJECT in one.headers) == stowed
        for got, answer in zip(event.generations, sent.generations, strict=True):
            np.testing.assert_array_equal(unpack(got.token_ids), unpack(answer.token_ids))
            np.testing.assert_array_equal(unpack(got.logprobs), unpack(answer.logprobs))
    assert [len(names) for names in named] == [GROUPS * stowed] * 3
    assert left == []
