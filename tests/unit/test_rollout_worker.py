"""The rollout role on a bus in memory: every request is answered once, by weights new enough for it."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from broker import weights
from broker.arrays import unpack
from broker.messages import LogPurged, Sampling, WeightsPublished
from broker.seeds import row_seed
from broker.topology import Log
from tests.builders import AT_US, WRITER
from tests.rollout_models import TOKENS, a_model, own_logprobs, save_weights, until
from tests.rollout_scene import (
    Scene,
    a_scene,
    a_started,
    a_train_request,
    an_ended,
    an_eval_request,
)
from workers.rollout import worker
from workers.rollout.engine import Engine
from workers.rollout.settings import RolloutSettings
from workers.rollout.worker import make_engine

torch.set_num_threads(1)


@pytest.fixture
async def scene(tmp_path: Path) -> Scene:
    return await a_scene(tmp_path)


async def test_a_group_is_answered_with_everything_the_learner_needs(scene: Scene):
    await scene.publish_weights(0)
    request = a_train_request(size=3)
    await scene.bus.publish(request)

    async with scene.running():
        (event,) = await scene.generated(1)

    assert (event.status, event.request, event.engine) == ("ok", request, "torch")
    assert [g.index for g in event.generations] == [0, 1, 2]
    assert [g.seed for g in event.generations] == [row_seed(7, "00000001-0-0", i) for i in range(3)]
    for generation in event.generations:
        ids, logprobs = unpack(generation.token_ids), unpack(generation.logprobs)
        expected = own_logprobs(a_model(seed=0), unpack(request.prompt_ids), ids)
        np.testing.assert_allclose(logprobs, expected[np.arange(len(ids)), ids], atol=1e-4)
        shown = ids[:-1] if generation.finish_reason == "stop" else ids
        assert generation.text == "".join(TOKENS[token] for token in shown if token > 2)
        assert AT_US < generation.started_at_us <= generation.finished_at_us


async def test_many_groups_are_answered_once_each(scene: Scene):
    await scene.publish_weights(0)
    for number in range(1, 31):
        await scene.bus.publish(a_train_request(number))

    async with scene.running(slots=8):
        events = await scene.generated(30)
        assert await scene.quiet() == 30

    assert {event.group.request_seq for event in events} == set(range(1, 31))


async def test_a_group_waits_for_weights_as_new_as_it_asks_for(scene: Scene):
    await scene.publish_weights(0)
    await scene.bus.publish(a_train_request(requested_version=2))

    async with scene.running():
        await until(lambda: "weights version 2 or newer" in str(scene.health.status()["waits"]))
        assert await scene.quiet() == 0
        await scene.publish_weights(1)
        assert await scene.quiet() == 0
        await scene.publish_weights(3)
        (event,) = await scene.generated(1)

    assert {span.version for g in event.generations for span in g.spans} == {3}
    assert event.request is not None


async def test_a_group_that_waits_in_vain_is_handed_back_not_lost(scene: Scene):
    await scene.publish_weights(0)
    await scene.bus.publish(a_train_request(requested_version=1))

    async with scene.running(weights_wait_s=0.2):
        assert await scene.quiet(0.6) == 0
        await scene.publish_weights(1)
        (event,) = await scene.generated(1)

    assert event.status == "ok"


async def test_the_version_in_force_never_goes_back(scene: Scene):
    await scene.publish_weights(5)
    async with scene.running():
        await until(lambda: scene.health.status().get("version") == 5)
        await scene.publish_weights(4)
        await scene.bus.publish(a_train_request(requested_version=4))
        (event,) = await scene.generated(1)

    assert {span.version for g in event.generations for span in g.spans} == {5}


async def test_weights_that_cannot_be_taken_leave_the_old_ones_at_work(scene: Scene):
    await scene.publish_weights(0)
    async with scene.running(weights_wait_s=0.3):
        await until(lambda: scene.health.status().get("version") == 0)
        await scene.publish_weights(1, digest="0" * 64)
        await asyncio.sleep(0.5)
        await scene.bus.publish(a_train_request(1))
        (before,) = await scene.generated(1)
        await scene.publish_weights(2)
        await scene.bus.publish(a_train_request(2, requested_version=1))
        _, after = await scene.generated(2)

    assert {span.version for g in before.generations for span in g.spans} == {0}
    assert {span.version for g in after.generations for span in g.spans} == {2}


async def test_weights_from_the_object_store_leave_no_copy_behind(scene: Scene):
    data = save_weights(a_model(seed=0), scene.path / "w").read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    uri = await weights.publish(scene.bus, "object", scene.path, 0, digest, data)
    await scene.bus.publish(
        WeightsPublished(
            writer_id=WRITER,
            at_us=AT_US,
            version=0,
            step=0,
            digest=digest,
            uri=uri,
            bytes=len(data),
        )
    )
    await scene.bus.publish(a_train_request(1))

    async with scene.running():
        (event,) = await scene.generated(1)

    assert event.status == "ok"
    assert [path for path in (scene.path / "cache").rglob("*") if path.is_file()] == []


async def test_an_evaluation_gets_exactly_its_version_while_training_moves_on(scene: Scene):
    for version in (0, 1, 2):
        await scene.publish_weights(version)
    requests = [
        an_eval_request(1, 0, 1), an_eval_request(0, 0, 2), a_train_request(3, requested_version=2),
        an_eval_request(0, 1, 4), an_eval_request(2, 0, 5), an_eval_request(1, 1, 6),
    ]  # fmt: skip
    for request in requests:
        await scene.bus.publish(request)

    async with scene.running():
        events = {event.group.group_id: event for event in await scene.generated(6)}

    for request in requests:
        event = events[request.group.group_id]
        assert {s.version for g in event.generations for s in g.spans} == {
            request.requested_version
        }
        for generation in event.generations:
            ids = unpack(generation.token_ids)
            own = own_logprobs(
                a_model(seed=request.requested_version), unpack(request.prompt_ids), ids
            )
            np.testing.assert_allclose(
                unpack(generation.logprobs), own[np.arange(len(ids)), ids], atol=1e-4
            )


@pytest.mark.parametrize(
    ("sampling", "reason"),
    [
        ({"top_p": 0.9}, "training needs answers from the whole distribution"),
        ({"top_k": 5}, "training needs answers from the whole distribution"),
        ({"min_p": 0.1}, "training needs answers from the whole distribution"),
        ({"repetition_penalty": 1.1}, "training needs answers from the whole distribution"),
        ({"max_tokens": 62}, "exceed the model's 64 positions"),
    ],
)
async def test_a_request_that_cannot_be_answered_fails_once_with_the_reason(
    scene: Scene, sampling: dict[str, float], reason: str
):
    await scene.publish_weights(0)
    bad = Sampling.model_validate({"temperature": 1.0, "max_tokens": 8} | sampling)
    await scene.bus.publish(a_train_request(1, sampling=bad))
    await scene.bus.publish(a_train_request(2))

    async with scene.running():
        events = {event.group.request_seq: event for event in await scene.generated(2)}

    assert events[1].status == "failed"
    assert reason in events[1].reason
    assert events[1].generations == ()
    assert events[2].status == "ok"
    assert (await scene.bus.state(Log.DEAD)).messages == 1


async def test_groups_below_the_purge_floor_are_not_answered_again(scene: Scene):
    await scene.publish_weights(0)
    await scene.bus.publish(LogPurged(writer_id=WRITER, at_us=AT_US, floor=2))
    for number in (1, 2, 3):
        await scene.bus.publish(a_train_request(number, requested_version=0))

    async with scene.running():
        (event,) = await scene.generated(1)
        assert await scene.quiet() == 1

    assert event.group.request_seq == 3


async def test_a_worker_told_to_stop_hands_its_groups_to_the_next(scene: Scene):
    await scene.publish_weights(0)
    await scene.bus.publish(a_train_request(1, requested_version=1))
    async with scene.running():
        assert await scene.quiet() == 0

    await scene.publish_weights(1)
    async with scene.running():
        (event,) = await scene.generated(1)

    assert event.status == "ok"


async def test_an_evaluation_takes_one_core_and_training_those_it_was_given(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
):
    threads: list[int] = []

    def watched(settings: RolloutSettings, *rest: Any) -> Engine:
        threads.append(settings.threads)
        return make_engine(settings, *rest)

    monkeypatch.setattr(worker, "make_engine", watched)
    await scene.publish_weights(0)
    await scene.bus.publish(an_eval_request(0, 0, 1))

    async with scene.running(threads=3):
        await scene.generated(1)

    assert threads == [3, 1]


async def test_a_worker_leaves_when_the_run_has_ended(scene: Scene):
    await scene.publish_weights(0)
    task = scene.run()
    await until(lambda: scene.health.status().get("version") == 0)

    await scene.bus.publish(an_ended())

    async with asyncio.timeout(8):
        await task


async def test_a_worker_of_a_resumed_run_waits_for_the_resumption(scene: Scene):
    await scene.bus.publish(an_ended())
    async with scene.running():
        assert await scene.quiet() == 0
        await scene.bus.publish(a_started(resumed=True))
        await scene.publish_weights(0)
        await scene.bus.publish(a_train_request(1))

        (event,) = await scene.generated(1)

    assert event.status == "ok"
