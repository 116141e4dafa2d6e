"""The verifier role: verdicts joined by index, failures passed on, nothing rewarded that was not judged."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from broker.errors import Poison
from broker.memory import MemoryBus
from broker.memory_state import MemoryServer
from broker.messages import GroupGenerated, GroupVerified, Incident, LogPurged, RunEnded
from broker.telemetry import Health
from broker.topology import Log, kind_subjects
from tests.builders import AT_US, WRITER, a_generated, a_generation, a_request, a_sample
from workers.verifiers import worker
from workers.verifiers.pool import Pool
from workers.verifiers.settings import VerifierSettings

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[Pool]:
    async with Pool(size=1, deadline_s=5.0, memory_bytes=1 << 30) as pool:
        yield pool


def a_group(*texts: str, verifier: str = "math", target: str | None = "1/2", **sample: object):
    request = a_request(
        size=len(texts), sample=a_sample(verifier={"name": verifier}, target=target, **sample)
    )
    # Out of order: a verdict must not depend on the place in the list.
    answers = [a_generation(i, text=text) for i, text in enumerate(texts)][::-1]
    return a_generated(request, generations=tuple(answers))


def verified(event: GroupGenerated, pool: Pool):
    """By the request that it answers, as if that were in the log."""
    return worker.verified(event, event.request or a_request(), pool, WRITER)


async def test_verdicts_are_joined_by_index_and_not_by_position(pool: Pool):
    event = a_group(r"\boxed{.5}", r"\boxed{3}", "no idea", r"\boxed{\frac{1}{2}}")

    found = await verified(event, pool)

    by_index = {v.index: v for v in found.verdicts}
    assert [v.index for v in found.verdicts] == [g.index for g in event.generations]
    assert [by_index[i].score for i in range(4)] == [1.0, 0.0, 0.0, 1.0]
    assert [by_index[i].status for i in range(4)] == ["ok", "ok", "no_answer", "ok"]
    assert [by_index[i].answer_class for i in range(4)] == [0, 1, None, 0]
    assert by_index[0].answer_key == by_index[3].answer_key == "1/2"
    assert (by_index[0].verifier, by_index[0].verifier_version) == ("math", "1")


async def test_a_failed_generation_is_passed_on_as_failed(pool: Pool):
    event = a_generated(status="failed", reason="engine error", generations=())

    found = await verified(event, pool)

    assert (found.status, found.reason) == ("failed", "engine error")
    assert found.request == event.request
    assert found.verdicts == ()


async def test_a_verifier_that_does_not_exist_fails_the_group(pool: Pool):
    found = await verified(a_group("1", verifier="nonsense"), pool)

    assert found.status == "failed"
    assert "nonsense" in found.reason


async def test_a_verifier_broken_for_all_answers_fails_the_group(pool: Pool, tmp_path: Path):
    (tmp_path / "broken.py").write_text(
        "from workers.verifiers.protocol import Verifier\n"
        "class Broken(Verifier):\n"
        "    def grade(self, response, target, item):\n"
        "        return {}[response]\n"
    )

    found = await verified(a_group("1", "2", verifier=f"{tmp_path / 'broken.py'}:Broken"), pool)

    assert found.status == "failed"
    assert "KeyError" in found.reason


async def test_a_message_of_another_kind_is_refused():
    with pytest.raises(Poison, match="group_requested"):
        worker.answers_in(a_request())


async def test_the_worker_judges_what_is_in_the_log_but_not_purged_and_ends_with_the_run():
    server = MemoryServer()
    bus, ours = MemoryBus(server, "run"), MemoryBus(server, "run")
    groups = [
        a_generated(
            a_request(f"{i:08d}-0-0", size=1, sample=a_sample(target=str(i))),
            generations=(a_generation(text=f" {i} " if i % 2 else "wrong"),),
        )
        for i in range(1, 21)
    ]
    await ours.publish(LogPurged(writer_id=WRITER, at_us=AT_US, floor=2))
    # A worker that chooses its own gold.
    easy = a_request("00000020-0-0", size=1, sample=a_sample(target="wrong"))
    for group in groups:
        assert group.request is not None
        await ours.publish(group.request, expect_subject=0)
        chosen = {"request": easy} if group.group == easy.group else {}
        await ours.publish(group.model_copy(update=chosen), expect_subject=0)
    # Below the floor it is purged; above, nobody ever asked for it.
    await ours.publish(a_generated(a_request("00000001-9-0")), expect_subject=0)
    await ours.publish(a_generated(a_request("00000021-0-0")), expect_subject=0)

    role = asyncio.create_task(
        worker.run(
            bus, settings=VerifierSettings(), health=Health("verifier"), stop=asyncio.Event()
        )
    )
    cursor = await ours.cursor(Log.VERIFIED, 0, [kind_subjects("run", "group_verified")])
    found: list[GroupVerified] = []
    while len(found) < 18 or (await ours.state(Log.DEAD)).messages < 2:
        async with asyncio.timeout(30):
            for stored in await cursor.read(20, 1.0):
                event = stored.event()
                assert isinstance(event, GroupVerified)
                found.append(event)
    await ours.publish(
        RunEnded(writer_id=WRITER, at_us=AT_US, reason="", status="finished", last_sequences={})
    )
    async with asyncio.timeout(15):
        await role

    told = await ours.last(Log.LEDGER, kind_subjects("run", Incident.KIND))
    assert told is not None
    assert told.event().detail == "nobody asked for group 00000021-0-0"  # type: ignore[union-attr]
    assert (await ours.state(Log.DEAD)).messages == 2
    (refused,) = (v for v in found if v.status == "failed")
    assert (refused.group, refused.request) == (easy.group, None)
    assert "not the stored one" in refused.reason
    scores = {v.group.group_id: v.verdicts[0].score for v in found if v.status == "ok"}
    assert scores == {f"{i:08d}-0-0": float(i % 2) for i in range(3, 20)}


async def test_the_worker_stops_when_told_and_loses_nothing():
    server = MemoryServer()
    bus, ours = MemoryBus(server, "run"), MemoryBus(server, "run")
    stop = asyncio.Event()
    role = asyncio.create_task(
        worker.run(bus, settings=VerifierSettings(), health=Health("verifier"), stop=stop)
    )
    await asyncio.sleep(0.1)

    stop.set()
    async with asyncio.timeout(30):
        await role
    await ours.publish(a_generated(), expect_subject=0)

    consumer = await ours.consumer(worker.VERIFIER)
    assert len(await consumer.fetch(10, 1.0)) == 1
