"""The rollout role on a bus in memory: every request is answered once, by weights new enough for it."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

from broker import weights
from broker.arrays import token_array, unpack
from broker.memory import MemoryBus, MemoryServer
from broker.messages import (
    GroupGenerated,
    GroupRequested,
    LogPurged,
    RunEnded,
    RunStarted,
    Sampling,
    WeightsPublished,
)
from broker.seeds import row_seed
from broker.settings import RunSettings
from broker.telemetry import Health
from broker.topology import Log
from tests.builders import AT_US, WRITER, a_key, a_request
from tests.rollout_models import TOKENS, a_folder, a_model, own_logprobs, save_weights, until
from workers.rollout import worker
from workers.rollout.settings import RolloutSettings

torch.set_num_threads(1)


def a_started(**changes: object) -> RunStarted:
    fields = {
        "writer_id": WRITER,
        "at_us": AT_US,
        "name": "t",
        "config": "{}",
        "config_sha256": "0",
        "seed": 7,
        "versions": {},
    }
    return RunStarted.model_validate(fields | changes)


def an_ended() -> RunEnded:
    return RunEnded(
        writer_id=WRITER, at_us=AT_US, reason="done", status="finished", last_sequences={}
    )


def a_train_request(number: int = 1, **changes: object) -> GroupRequested:
    fields = {
        "prompt_ids": token_array([4 + number, 6, 7]),
        "sampling": Sampling(temperature=1.0, max_tokens=8),
    }
    return a_request(f"{number:08d}-0-0", **(fields | changes))


def an_eval_request(version: int, item: int, seq: int) -> GroupRequested:
    group = a_key(f"v{version:06d}-math-{item:05d}-0", purpose="eval", request_seq=seq)
    return a_request(
        size=1,
        group=group,
        prompt_ids=token_array([5, 6, 7]),
        sampling=Sampling(temperature=0.0, max_tokens=8),
        requested_version=version,
        mixture=None,
        benchmark="math",
    )


@dataclass
class Scene:
    """A run on a bus in memory, with model weights as files."""

    path: Path
    bus: MemoryBus
    deterministic: bool = False
    health: Health = field(default_factory=lambda: Health("rollout"))
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def publish_weights(self, version: int, *, digest: str | None = None) -> None:
        file = save_weights(a_model(seed=version), self.path / f"weights-{version}")
        await self.bus.publish(
            WeightsPublished(
                writer_id=WRITER,
                at_us=AT_US,
                version=version,
                step=version,
                digest=digest or hashlib.sha256(file.read_bytes()).hexdigest(),
                uri=f"file:{file}",
                bytes=file.stat().st_size,
            )
        )

    async def generated(self, count: int, wait_s: float = 20.0) -> list[GroupGenerated]:
        """The first `count` messages of GENERATED, in log order."""
        cursor = await self.bus.cursor(Log.GENERATED, 0)
        found: list[GroupGenerated] = []
        async with asyncio.timeout(wait_s):
            while len(found) < count:
                for stored in await cursor.read(100, 0.1):
                    event = stored.event()
                    assert isinstance(event, GroupGenerated)
                    found.append(event)
        await cursor.close()
        return found

    async def quiet(self, wait_s: float = 0.3) -> int:
        """How many messages GENERATED holds after a while."""
        await asyncio.sleep(wait_s)
        return (await self.bus.state(Log.GENERATED)).messages

    def run(self, **settings: object) -> "asyncio.Task[None]":
        run = RunSettings(
            seed=7, steps=9, groups_per_step=2, group_size=2,
            max_staleness=0 if self.deterministic else 2, deterministic=self.deterministic,
        )  # fmt: skip
        return asyncio.create_task(
            worker.run(
                self.bus,
                run=run,
                settings=RolloutSettings.model_validate({"max_rows": 16} | settings),
                model_dir=a_folder(self.path / "model"),
                device="cpu",
                dtype="float32",
                cache_dir=self.path / "cache",
                health=self.health,
                stop=self.stop,
            )
        )

    @asynccontextmanager
    async def running(self, **settings: object) -> AsyncIterator[None]:
        """A worker that is told to stop at the end, and obeys."""
        task = self.run(**settings)
        try:
            yield
        finally:
            self.stop.set()
            async with asyncio.timeout(8):
                await task
            self.stop.clear()


@pytest.fixture
async def scene(tmp_path: Path) -> Scene:
    bus = MemoryBus(MemoryServer(), "t")
    await bus.publish(a_started())
    return Scene(tmp_path, bus)


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
        assert await scene.quiet() == 0
        waits = [wait["for"] for wait in scene.health.status()["waits"]]
        assert "weights version 2 or newer" in waits
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


# --- deterministic mode -----------------------------------------------------------------------


def a_cohort(number: int, *seqs: int, **changes: object) -> list[GroupRequested]:
    return [a_train_request(s, cohort=number, cohort_size=len(seqs), **changes) for s in seqs]


async def outputs(path: Path, requests: list[GroupRequested]) -> list[GroupGenerated]:
    scene = Scene(path, MemoryBus(MemoryServer(), "t"), deterministic=True)
    await scene.bus.publish(a_started())
    await scene.publish_weights(0)
    for request in requests:
        await scene.bus.publish(request)
    async with scene.running():
        return await scene.generated(len(requests))


async def test_a_cohort_decoded_by_another_process_has_the_same_bits(tmp_path: Path):
    cohort = a_cohort(1, 1, 2, 3)

    first, second = [await outputs(tmp_path / name, cohort) for name in ("a", "b")]

    def bits(events: list[GroupGenerated]) -> list[tuple[bytes, bytes]]:
        return [(g.token_ids.data, g.logprobs.data) for e in events for g in e.generations]

    assert bits(first) == bits(second)
    assert [event.group.request_seq for event in first] == [1, 2, 3]


async def test_a_cohort_waits_until_it_is_complete_and_is_stored_in_request_order(scene: Scene):
    scene.deterministic = True
    await scene.publish_weights(0)
    first, second, third = a_cohort(1, 1, 2, 3)
    await scene.bus.publish(third)
    await scene.bus.publish(first)

    async with scene.running():
        assert await scene.quiet() == 0
        await scene.bus.publish(second)
        events = await scene.generated(3)

    assert [event.group.request_seq for event in events] == [1, 2, 3]


async def test_a_member_that_cannot_be_answered_does_not_hold_up_its_cohort(scene: Scene):
    scene.deterministic = True
    await scene.publish_weights(0)
    bad = Sampling(temperature=1.0, max_tokens=8, top_k=3)
    first, _, third = a_cohort(1, 1, 2, 3)
    (second,) = [r for r in a_cohort(1, 1, 2, 3, sampling=bad) if r.group.request_seq == 2]
    for request in (first, second, third):
        await scene.bus.publish(request)

    async with scene.running():
        events = await scene.generated(3)

    assert [event.status for event in events] == ["ok", "failed", "ok"]
    assert (await scene.bus.state(Log.DEAD)).messages == 1


async def test_members_of_a_stored_cohort_that_come_again_are_put_aside(scene: Scene):
    scene.deterministic = True
    await scene.publish_weights(0)
    earlier, later = a_cohort(1, 1, 2), a_cohort(2, 3, 4)
    for request in (*earlier, *later):
        await scene.bus.publish(request)
    # As after a crash between storing a cohort and acknowledging it.
    stored = await outputs(scene.path / "before", earlier)
    await scene.bus.publish_batch(stored)

    async with scene.running():
        events = await scene.generated(4)
        assert await scene.quiet() == 4

    assert [event.group.request_seq for event in events] == [1, 2, 3, 4]
    assert events[:2] == stored
