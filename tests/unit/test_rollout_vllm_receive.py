"""Weights from the learner's memory to an engine, over a real connection between two stand-ins for vLLM."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from broker import offer as offers
from broker.memory import MemoryBus, MemoryServer
from broker.messages import WeightsPublished
from broker.offer import Offer
from learner.offers import Client, Offered, Offers
from learner.vllm_sender import plain
from tests.builders import AT_US, WRITER
from tests.rollout_models import a_folder, a_model, save_weights, until
from tests.vllm_stand_in import StandIn, Starts
from workers.rollout.engine import Engine, EngineError, Untaken
from workers.rollout.settings import VllmSettings
from workers.rollout.vllm_engine import VllmEngine
from workers.rollout.vllm_worker import handle_of
from workers.rollout.weights import from_learner

DIGEST = "d" * 64
TRANSFER = [
    "pause keep", "init_weight_transfer_engine", "start_weight_update", "watch_weights", "take_chunk",
    "finish_weight_update", "watched_weights", "shutdown_weight_transfer_engine", "label 1", "resume",
]  # fmt: skip


@dataclass
class Sending:
    """What vLLM's trainer side does, without the data."""

    offered: Offered
    client: Client
    ranks: int
    before_update: Callable[[], None] = lambda: None
    aborted: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        self.client.init_weight_transfer_engine({"world_size": 1 + self.ranks})
        self.client.start_weight_update()
        self.before_update()
        self.client.update_weights({"names": list(self.offered.tensors)})
        self.client.finish_weight_update()

    def abort(self) -> None:
        self.aborted.set()


@dataclass
class Pair:
    engine: VllmEngine
    starts: Starts
    learner: Offers
    offer: Offer
    weights: Path
    sent: list[Sending]
    before_update: Callable[[], None] = lambda: None

    @property
    def llm(self) -> StandIn:
        return self.starts.made[-1]

    async def receive(self, version: int = 1, digest: str = DIGEST, token: str = "") -> None:
        offer = self.offer.model_copy(update={"token": token} if token else {})
        await self.engine.receive(offer, version, digest)


@asynccontextmanager
async def a_pair(path: Path, limit_s: float = 20.0) -> AsyncIterator[Pair]:
    """An engine with version 0 from a file, and a learner that offers version 1."""
    starts, model = Starts(), a_model()
    engine = VllmEngine(
        a_folder(path / "model"), cache_dir=path / "cache", device="cpu", dtype="float32",
        max_rows=8, threads=1, settings=VllmSettings(), start=starts, transfer="test",
    )  # fmt: skip

    def send(offered: Offered, client: Client, ranks: int) -> Sending:
        pair.sent.append(Sending(offered, client, ranks, pair.before_update))
        return pair.sent[-1]

    learner = Offers(send, dtype=torch.float32, limit_s=limit_s)
    offer = await learner.open("127.0.0.1", told="127.0.0.1")
    pair = Pair(engine, starts, learner, offer, save_weights(model, path / "w"), [])
    try:
        await engine.load(pair.weights, 0)
        learner.put(1, DIGEST, model)
        pair.llm.arrived = {name: told for name, _, _, told in learner.listed()}
        pair.llm.calls.clear()
        yield pair
    finally:
        async with asyncio.timeout(10):
            await engine.close()
            await learner.close()


async def test_an_announced_version_is_taken_between_two_steps_and_labelled(tmp_path: Path):
    async with a_pair(tmp_path) as pair:
        await pair.receive()

        assert pair.llm.calls == TRANSFER
        assert pair.llm.told[0] == {"world_size": 2}
        assert (pair.engine.version, pair.llm.label) == (1, "1")


async def test_after_weights_that_were_sent_those_of_a_file_are_taken_as_ever(tmp_path: Path):
    async with a_pair(tmp_path) as pair:
        await pair.receive()
        await pair.engine.load(pair.weights, 2)

        assert (pair.engine.version, pair.llm.weights) == (2, "v2-1")


async def test_old_weights_are_never_put_back_from_a_file_that_is_older_than_they(tmp_path: Path):
    async with a_pair(tmp_path) as pair:
        await pair.receive()
        pair.llm.refused.add("v2-1")

        with pytest.raises(EngineError, match="holds others than before"):
            await pair.engine.load(pair.weights, 2)

        assert pair.engine.version is None


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"version": 2}, "version 1 is offered, not 2"),
        ({"digest": "e" * 64}, "version 1 is offered"),
        ({"token": "guessed"}, "not the token"),
        ({"token": "erraten: \u00fc"}, "not the token"),
    ],
)
async def test_what_is_not_offered_is_not_taken_and_nothing_pauses(
    tmp_path: Path, asked: dict[str, object], why: str
):
    async with a_pair(tmp_path) as pair:
        with pytest.raises(Untaken, match=why):
            await pair.receive(**asked)  # type: ignore[arg-type]

        assert (pair.engine.version, pair.llm.calls, pair.sent) == (0, [], [])


async def test_a_learner_that_is_gone_costs_nothing(tmp_path: Path):
    async with a_pair(tmp_path) as pair:
        await pair.learner.close()

        with pytest.raises(Untaken):
            await pair.receive()

        assert (pair.engine.version, pair.llm.calls) == (0, [])


async def test_another_models_weights_are_refused_before_anything_is_sent(tmp_path: Path):
    async with a_pair(tmp_path) as pair:
        pair.learner.put(1, DIGEST, a_model("llama-wide"))

        with pytest.raises(Untaken, match=r"the learner's offer: tensors|has shape"):
            await pair.receive()

        assert (pair.engine.version, pair.llm.calls, pair.sent) == (0, [], [])


async def test_two_that_cannot_be_joined_leave_the_old_weights_at_work(tmp_path: Path):
    async with a_pair(tmp_path) as pair:
        pair.llm.broken.add("init_weight_transfer_engine")

        with pytest.raises(Untaken, match="no memory"):
            await pair.receive()

        assert pair.engine.version == 0
        assert pair.llm.calls == ["pause keep", "init_weight_transfer_engine", "resume"]
        assert await asyncio.to_thread(pair.sent[0].aborted.wait, 5)


async def test_an_engine_that_holds_half_of_two_versions_is_ended(tmp_path: Path):
    async with a_pair(tmp_path) as pair:
        pair.llm.broken.add("take_chunk")

        with pytest.raises(EngineError, match="a transfer broke: RuntimeError: no memory"):
            await pair.receive()

        assert pair.engine.version is None
        assert pair.llm.calls[-1] == "shutdown"


async def test_weights_that_arrive_with_one_bit_changed_are_never_in_force(tmp_path: Path):
    async with a_pair(tmp_path) as pair:
        (name, *_) = pair.llm.arrived
        pair.llm.arrived[name] = "1"

        with pytest.raises(EngineError, match=f"1 tensors arrived differently at GPU 0, .*{name}"):
            await pair.receive()

        assert "label 1" not in pair.llm.calls
        assert pair.engine.version is None


async def test_a_learner_that_dies_during_a_transfer_costs_the_engine_not_more(tmp_path: Path):
    async with a_pair(tmp_path) as pair:
        reached, go = threading.Event(), threading.Event()

        def reach_and_wait() -> None:
            reached.set()
            go.wait(10)

        pair.before_update = reach_and_wait
        receiving = asyncio.create_task(pair.receive())
        await asyncio.to_thread(reached.wait, 10)

        await pair.learner.close()

        async with asyncio.timeout(10):
            with pytest.raises(EngineError, match="the other side is gone"):
                await receiving
        go.set()
        await pair.engine.load(pair.weights, 1)
        assert (pair.engine.version, len(pair.starts.made)) == (1, 2)


async def test_an_engine_that_dies_during_a_transfer_is_let_go_and_the_next_is_served(
    tmp_path: Path,
):
    async with a_pair(tmp_path / "a", limit_s=0.5) as pair:
        pair.llm.hanging.add("take_chunk")
        receiving = asyncio.create_task(pair.receive())
        await until(lambda: "take_chunk" in pair.llm.calls)

        assert await asyncio.to_thread(pair.sent[0].aborted.wait, 10), "after the limit"
        pair.llm.errored = True
        with pytest.raises(EngineError):
            await receiving
        await pair.engine.load(pair.weights, 0)
        pair.llm.arrived = {name: told for name, _, _, told in pair.learner.listed()}
        await pair.receive()

        assert pair.engine.version == 1


async def test_the_stored_weights_are_taken_first_and_whenever_none_are_sent(tmp_path: Path):
    bus = MemoryBus(MemoryServer(), "r")
    stored: list[int] = []

    async with a_pair(tmp_path) as pair:

        async def from_a_file(engine: Engine, published: WeightsPublished) -> None:
            stored.append(published.version)
            await engine.load(pair.weights, published.version)

        load = from_learner(bus, pair.engine, from_a_file)
        await load(pair.engine, published(1))
        assert stored == [1], "no offer was announced"
        pair.learner.put(2, DIGEST, a_model())
        await offers.announce(bus, pair.offer)
        await load(pair.engine, published(2))
        assert (stored, pair.engine.version) == ([1], 2)
        await load(pair.engine, published(3))
        assert (stored, pair.engine.version) == ([1, 3], 3)
        pair.llm.errored = True
        await until(lambda: pair.engine.version is None)
        await load(pair.engine, published(4))
        assert (stored, pair.engine.version) == ([1, 3, 4], 4)


def published(version: int) -> WeightsPublished:
    return WeightsPublished(
        writer_id=WRITER,
        at_us=AT_US,
        version=version,
        step=version,
        digest=DIGEST,
        uri="file:/w",
        bytes=1,
    )


def test_a_handle_of_shared_memory_is_told_without_pickle_and_comes_back_the_same():
    """The arguments of torch's `rebuild_cuda_tensor`, as `reduce_tensor` makes them."""
    handle = (
        torch.Tensor, torch.Size([8]), (1,), 0, torch.storage.TypedStorage, torch.uint8, 0,
        b"handle", 8, 512, False, b"counter", 3, b"event", True,
    )  # fmt: skip

    assert handle_of(plain(handle)) == handle
    assert isinstance(handle_of(plain(handle))[1], torch.Size)
    with pytest.raises(TypeError, match="expected a plain tensor"):
        plain((torch.nn.Parameter, *handle[1:]))
