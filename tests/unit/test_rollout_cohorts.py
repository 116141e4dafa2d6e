"""Deterministic runs: whole cohorts, in request order, the same bits each time."""

from pathlib import Path

import pytest
import torch

from broker.arrays import token_array
from broker.messages import GroupGenerated, GroupRequested, Sampling
from broker.topology import Log
from tests.rollout_scene import Scene, a_scene, a_train_request, an_eval_request

torch.set_num_threads(1)


@pytest.fixture
async def scene(tmp_path: Path) -> Scene:
    return await a_scene(tmp_path, deterministic=True)


def a_cohort(number: int, *seqs: int, **changes: object) -> list[GroupRequested]:
    return [a_train_request(s, cohort=number, cohort_size=len(seqs), **changes) for s in seqs]


async def outputs(path: Path, requests: list[GroupRequested]) -> list[GroupGenerated]:
    scene = await a_scene(path, deterministic=True)
    await scene.publish_weights(0)
    for request in requests:
        await scene.bus.publish(request)
    async with scene.running():
        return await scene.generated(len(requests))


def bits(events: list[GroupGenerated]) -> list[tuple[bytes, bytes]]:
    return [(g.token_ids.data, g.logprobs.data) for e in events for g in e.generations]


async def test_a_cohort_decoded_by_another_process_has_the_same_bits(tmp_path: Path):
    cohort = a_cohort(1, 1, 2, 3)

    first, second = [await outputs(tmp_path / name, cohort) for name in ("a", "b")]

    assert bits(first) == bits(second)
    assert [event.group.request_seq for event in first] == [1, 2, 3]


async def test_a_cohort_waits_until_it_is_complete_and_is_stored_in_request_order(scene: Scene):
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


@pytest.mark.parametrize("kept", [1, 2])
@pytest.mark.parametrize("evaluations", [False, True])
async def test_a_cohort_of_which_a_full_server_kept_the_beginning_is_finished(
    scene: Scene, kept: int, evaluations: bool
):
    await scene.publish_weights(0)
    earlier, later = a_cohort(1, 1, 2, 3), a_cohort(2, 4, 5)
    for number, request in enumerate((*earlier, *later)):
        if evaluations:  # the log's numbers drift away from the groups'
            await scene.bus.publish(an_eval_request(0, number, 100 + number))
        await scene.bus.publish(request)
    # As when its owner dies before it can go on.
    whole = await outputs(scene.path / "before", earlier)
    await scene.bus.publish_batch(whole[:kept])

    async with scene.running():
        events = await scene.generated(10 if evaluations else 5)
        assert await scene.quiet() == len(events)

    events = [event for event in events if event.group.purpose == "train"]
    assert [event.group.request_seq for event in events] == [1, 2, 3, 4, 5]
    assert events[:kept] == whole[:kept]
    assert bits(events[:3]) == bits(whole)


async def test_an_evaluation_comes_out_the_same_whoever_else_is_asked(tmp_path: Path):
    items = [
        an_eval_request(0, item, item).model_copy(
            update={"prompt_ids": token_array([4 + (item + n) % 9 for n in range(1 + item)])}
        )
        for item in range(1, 9)
    ]

    together = await outputs(tmp_path / "together", items)
    alone = [(await outputs(tmp_path / f"{i}", [item]))[0] for i, item in enumerate(items[-2:])]

    by_group = {event.group.group_id: event for event in together}
    for event in alone:
        (one,), (other,) = event.generations, by_group[event.group.group_id].generations
        assert one.token_ids == other.token_ids
        assert one.logprobs == other.logprobs
