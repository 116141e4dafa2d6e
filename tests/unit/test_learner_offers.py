"""A learner that offers its weights beside storing them."""

import asyncio
import importlib.util
from pathlib import Path

import pytest
import torch

from broker import offer as offers_told
from broker.errors import BadConfiguration
from broker.memory import MemoryBus
from broker.memory_state import MemoryServer
from broker.messages import WeightsPublished
from broker.offer import Offer
from broker.settings import RunSettings
from broker.telemetry import Health
from learner.offers import Offered, Offers
from learner.settings import LearnerSettings, ModelSettings, WarmupSettings
from learner.vllm_sender import offering
from learner.worker import prepare
from learner.workshop import Workshop
from tests.learner_lives import events, of_kind
from tests.learning import TINY, a_model_folder
from tests.rollout_models import a_model
from workers.rollout.vllm_worker import fingerprinted

DIGEST = "d" * 64


class Watched(Offers):
    """Keeps what LEDGER told of weights when an offer was made."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(never, dtype=torch.float32)
        self.server = server
        self.loop = asyncio.get_running_loop()
        self.told: list[tuple[int, str, list[int]]] = []

    def put(self, version: int, digest: str, model: object) -> None:
        asked = asyncio.run_coroutine_threadsafe(events(self.server), self.loop)
        published = [event.version for event in of_kind(asked.result(10), WeightsPublished)]
        self.told.append((version, digest, published))


def never(*_: object) -> object:
    raise AssertionError


async def test_weights_are_offered_before_they_are_announced_and_stored_all_the_same(
    tmp_path: Path,
):
    server, stop = MemoryServer(), asyncio.Event()
    with Workshop(threads=1, deterministic=False, health=Health("learner"), stop=stop) as workshop:
        steps = await prepare(
            MemoryBus(server, "r"), workshop,
            run=RunSettings(id="r", steps=1, groups_per_step=1, group_size=2),
            model=ModelSettings(tiny=TINY), model_dir=a_model_folder(tmp_path / "model"),
            settings=LearnerSettings(), warmup=WarmupSettings(), run_dir=tmp_path,
        )  # fmt: skip
        steps.digest = DIGEST
        steps.offers = Watched(server)

        await steps.publish_weights()

    (event,) = of_kind(await events(server), WeightsPublished)
    assert steps.offers.told == [(event.version, event.digest, [])]
    assert (tmp_path / "weights" / event.uri.rpartition("/")[2]).is_file()


async def test_a_learner_that_sends_nothing_offers_nothing():
    async with offering(MemoryBus(MemoryServer(), "r"), "none", torch.float32) as offers:
        assert offers is None


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vllm is installed")
async def test_a_learner_without_vllm_that_is_to_send_weights_is_refused():
    with pytest.raises(BadConfiguration, match=r"learner\.transfer: vllm is not installed"):
        async with offering(MemoryBus(MemoryServer(), "r"), "nccl", torch.float32):
            pass


def test_what_is_offered_stays_as_it_was_while_the_model_is_trained():
    model = a_model()
    offered = Offered.of(model, 1, DIGEST, torch.bfloat16)
    assert offered is not None
    before = {name: tensor.clone() for name, tensor in offered.tensors.items()}

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)

    assert all(torch.equal(offered.tensors[name], tensor) for name, tensor in before.items())
    assert {tensor.dtype for tensor in before.values()} == {torch.bfloat16}


def test_weights_that_are_not_finite_are_not_offered():
    model = a_model()
    with torch.no_grad():
        next(model.parameters())[0] = float("nan")

    assert Offered.of(model, 1, DIGEST, torch.float32) is None


async def test_the_newest_learners_offer_counts_and_nonsense_is_none():
    bus = MemoryBus(MemoryServer(), "r")
    assert await offers_told.newest(bus) is None

    for port in (1, 2):
        await offers_told.announce(bus, Offer(host="h", port=port, token="t"))
    assert await offers_told.newest(bus) == Offer(host="h", port=2, token="t")

    _, revision = await bus.read_lease(offers_told.ROLE)
    await bus.write_lease(offers_told.ROLE, b"{}", expect=revision)
    assert await offers_told.newest(bus) is None


def test_fingerprints_of_what_arrives_are_those_of_what_was_offered():
    offered = Offered.of(a_model(), 1, DIGEST, torch.bfloat16)
    assert offered is not None
    seen: dict[str, str] = {}

    passed = dict(fingerprinted(iter(offered.tensors.items()), seen))

    assert seen == {name: told for name, _, _, told in offered.listed()}
    assert passed.keys() == offered.tensors.keys()
