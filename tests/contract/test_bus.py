"""What every bus promises about logs, in memory and on JetStream alike."""

import asyncio

import numpy as np
import pytest

from broker.arrays import token_array
from broker.bus import Bus
from broker.errors import Conflict, Poison
from broker.packing import H_DEAD_REASON, H_DEAD_SEQUENCE
from broker.telemetry import Health
from broker.topology import H_GROUP, H_OBJECT, Log, kind_subjects
from tests.builders import a_generated, a_request
from tests.contract.conftest import Place


def group_id(number: int) -> str:
    return f"{number:08d}-0-0"


def a_large_request(number: int = 1, *, kib: int = 300):
    """Larger than a message may be in a log of 1 MiB; incompressible, like real token ids."""
    tokens = np.random.default_rng(number).integers(0, 2**31, size=kib * 256)
    return a_request(group_id(number), prompt_ids=token_array(tokens))


async def read_all(bus: Bus, log: Log, count: int, **how) -> list:
    cursor = await bus.cursor(log, how.pop("after", 0), how.pop("subjects", ()), **how)
    found: list = []
    async with asyncio.timeout(20):
        while len(found) < count:
            found += await cursor.read(count - len(found), 1.0)
    await cursor.close()
    return found


async def test_sequences_grow_by_one_and_a_cursor_reads_in_that_order(bus: Bus):
    sequences = [await bus.publish(a_request(group_id(n)), expect_subject=0) for n in range(1, 21)]

    found = await read_all(bus, Log.REQUESTS, 20)

    assert sequences == list(range(1, 21))
    assert [stored.sequence for stored in found] == sequences
    assert [stored.headers[H_GROUP] for stored in found] == [group_id(n) for n in range(1, 21)]


async def test_an_event_is_read_as_it_was_published(bus: Bus):
    event = a_generated()

    sequence = await bus.publish(event)

    for stored in (
        *(await read_all(bus, Log.GENERATED, 1)),
        await bus.get(Log.GENERATED, sequence),
        await bus.last(Log.GENERATED, kind_subjects(bus.run, "group_generated")),
    ):
        assert stored is not None
        assert stored.event() == event
        assert stored.stored_at_us > 1_600_000_000_000_000


async def test_a_second_first_message_of_a_subject_is_refused(bus: Bus):
    await bus.publish(a_request(at_us=1), expect_subject=0)

    with pytest.raises(Conflict):
        await bus.publish(a_request(at_us=2), expect_subject=0)

    assert (await bus.state(Log.REQUESTS)).messages == 1


async def test_publishing_identical_bytes_again_is_success_with_the_first_sequence(bus: Bus):
    await bus.publish(a_request(group_id(1)), expect_subject=0, expect_log=0)
    first = await bus.publish(a_request(group_id(2)), expect_subject=0, expect_log=1)

    again = await bus.publish(a_request(group_id(2)), expect_subject=0)
    again_on_log = await bus.publish(a_request(group_id(2)), expect_log=1)

    assert (first, again, again_on_log) == (2, 2, 2)
    assert (await bus.state(Log.REQUESTS)).messages == 2


async def test_only_one_of_many_concurrent_writers_of_a_position_wins(place: Place):
    buses = [await place.bus() for _ in range(3)]

    results = await asyncio.gather(
        *(
            bus.publish(a_request(group_id(n), writer_id=f"w{n}"), expect_log=0)
            for n, bus in enumerate(buses, start=1)
        ),
        return_exceptions=True,
    )

    assert [type(result) for result in results].count(Conflict) == 2
    assert [result for result in results if isinstance(result, int)] == [1]


async def test_compare_and_set_on_the_log_refuses_a_position_that_has_passed(bus: Bus):
    await bus.publish(a_request(group_id(1)), expect_log=0)

    with pytest.raises(Conflict):
        await bus.publish(a_request(group_id(2)), expect_log=0)

    assert await bus.publish(a_request(group_id(2)), expect_log=1) == 2


async def test_publications_without_expectation_may_repeat_a_subject(bus: Bus):
    assert await bus.publish(a_request()) == 1
    assert await bus.publish(a_request()) == 2


async def test_a_batch_is_stored_consecutively(bus: Bus):
    await bus.publish(a_generated(a_request(group_id(9))))
    batch = [a_generated(a_request(group_id(n))) for n in range(10, 60)]

    last = await bus.publish_batch(batch, expect_log=1)

    assert last == 51
    assert [s.event() for s in await read_all(bus, Log.GENERATED, 50, after=1)] == batch


async def test_a_conflict_in_the_middle_of_a_batch_stores_nothing(bus: Bus):
    await bus.publish(a_generated(a_request(group_id(5)), worker="rival"), expect_subject=0)

    with pytest.raises(Conflict):
        await bus.publish_batch([a_generated(a_request(group_id(n))) for n in range(1, 10)])

    state = await bus.state(Log.GENERATED)
    assert (state.messages, state.last) == (1, 1)


async def test_a_batch_at_a_position_that_has_passed_stores_nothing(bus: Bus):
    await bus.publish(a_generated(a_request(group_id(1))))

    with pytest.raises(Conflict):
        await bus.publish_batch([a_generated(a_request(group_id(2)))], expect_log=0)

    assert (await bus.state(Log.GENERATED)).messages == 1


async def test_a_batch_published_again_after_a_lost_answer_is_success(bus: Bus):
    batch = [a_generated(a_request(group_id(n))) for n in range(1, 6)]
    first = await bus.publish_batch(batch, expect_log=0)

    again = await bus.publish_batch(batch, expect_log=0)

    assert (first, again) == (5, 5)
    assert (await bus.state(Log.GENERATED)).messages == 5


async def test_a_batch_of_a_thousand_is_one_batch_and_more_is_refused(bus: Bus):
    batch = [a_request(group_id(n)) for n in range(1, 1001)]

    assert await bus.publish_batch(batch) == 1000

    with pytest.raises(ValueError, match="expected 1 to 1000"):
        await bus.publish_batch([a_request(group_id(n)) for n in range(2000, 3001)])


async def test_a_batch_that_names_a_subject_twice_is_refused(bus: Bus):
    with pytest.raises(ValueError, match="twice"):
        await bus.publish_batch([a_request(at_us=1), a_request(at_us=2)])


async def test_a_cursor_starts_after_its_position_and_keeps_it(bus: Bus):
    for n in range(1, 6):
        await bus.publish(a_request(group_id(n)))
    cursor = await bus.cursor(Log.REQUESTS, 2)

    first = await cursor.read(2, 5.0)
    position = cursor.position
    second = await cursor.read(2, 5.0)

    assert [s.sequence for s in first] == [3, 4]
    assert position == 4
    assert [s.sequence for s in second] == [5]


async def test_a_waiting_cursor_gets_a_message_as_soon_as_there_is_one(bus: Bus):
    cursor = await bus.cursor(Log.REQUESTS, 0)
    waiting = asyncio.create_task(cursor.read(10, 20.0))
    await asyncio.sleep(0.1)

    await bus.publish(a_request())

    async with asyncio.timeout(5):
        assert len(await waiting) == 1


async def test_reading_an_empty_log_returns_in_time(bus: Bus):
    cursor = await bus.cursor(Log.REQUESTS, 0)

    async with asyncio.timeout(3):
        assert await cursor.read(10, 0.2) == []


async def test_a_cursor_steps_over_purged_messages_only(bus: Bus):
    for n in range(1, 11):
        await bus.publish(a_request(group_id(n)))
    before = await bus.cursor(Log.REQUESTS, 0)
    assert (await before.read(1, 5.0))[0].sequence == 1

    purged = await bus.purge(Log.REQUESTS, 6)

    found = await read_all(bus, Log.REQUESTS, 4)
    assert purged == 6
    assert [s.sequence for s in found] == [7, 8, 9, 10]
    assert await bus.get(Log.REQUESTS, 6) is None


async def test_a_cursor_sees_only_the_subjects_it_asked_for(bus: Bus):
    for n in range(1, 9):
        purpose = "eval" if n % 4 == 0 else "probe" if n % 2 else "train"
        request = a_request(group_id(n))
        group = request.group.model_copy(update={"purpose": purpose})
        await bus.publish(request.model_copy(update={"group": group}))

    found = await read_all(
        bus,
        Log.REQUESTS,
        4,
        subjects=[
            kind_subjects(bus.run, "group_requested", "train"),
            kind_subjects(bus.run, "group_requested", "eval"),
        ],
    )

    assert [s.sequence for s in found] == [2, 4, 6, 8]


async def test_headers_only_leaves_the_body_behind(bus: Bus):
    await bus.publish(a_generated())

    (stored,) = await read_all(bus, Log.GENERATED, 1, headers_only=True)

    assert stored.data == b""
    assert stored.headers[H_GROUP] == a_generated().group.group_id
    assert set(stored.headers) == set((await read_all(bus, Log.GENERATED, 1))[0].headers)


async def test_last_takes_wildcards_and_answers_none_for_silence(bus: Bus):
    await bus.publish(a_request(group_id(1)))
    await bus.publish(a_request(group_id(2)))

    newest = await bus.last(Log.REQUESTS, kind_subjects(bus.run, "group_requested", "train"))

    assert newest is not None
    assert newest.sequence == 2
    assert await bus.last(Log.REQUESTS, kind_subjects(bus.run, "group_requested", "eval")) is None


async def test_state_tells_first_last_count_and_quota(place: Place):
    bus = await place.bus(log_bytes=2 << 20)
    empty = await bus.state(Log.REQUESTS)
    for n in range(1, 5):
        await bus.publish(a_request(group_id(n)))
    await bus.purge(Log.REQUESTS, 1)

    state = await bus.state(Log.REQUESTS)
    await bus.purge(Log.REQUESTS, 4)
    emptied = await bus.state(Log.REQUESTS)

    assert (empty.first, empty.last, empty.messages) == (1, 0, 0)
    assert (state.first, state.last, state.messages) == (2, 4, 3)
    assert (emptied.first, emptied.last, emptied.messages) == (5, 4, 0)
    assert state.limit_bytes == 2 << 20
    assert 0 < state.bytes < 1 << 20


async def test_purging_can_keep_the_last_message_of_every_subject(bus: Bus):
    for n in (1, 2, 1, 3, 2, 2):
        await bus.publish(a_request(group_id(n)))

    purged = await bus.purge(Log.REQUESTS, 5, keep_last_per_subject=True)

    assert purged == 3
    assert [s.sequence for s in await read_all(bus, Log.REQUESTS, 3)] == [3, 4, 6]


async def test_a_full_log_makes_the_publisher_wait_and_go_on_when_there_is_space(place: Place):
    health = Health("publisher")
    bus = await place.bus(log_bytes=1 << 20, health=health)
    ids = token_array(np.arange(25_000))
    for n in range(1, 11):
        await bus.publish(a_request(group_id(n), prompt_ids=ids), expect_subject=0)

    late = a_request(group_id(99), prompt_ids=token_array(np.arange(30_000)))
    waiting = asyncio.create_task(bus.publish(late, expect_subject=0))
    waits: list = []
    async with asyncio.timeout(10):
        while not waits:
            await asyncio.sleep(0.01)
            found: list = list(health.status()["waits"])  # type: ignore[call-overload]
            waits = [wait["for"] for wait in found if "space" in wait["for"]]
    state = await bus.state(Log.REQUESTS)
    await bus.purge(Log.REQUESTS, 5)

    async with asyncio.timeout(10):
        sequence = await waiting
    assert "REQUESTS" in waits[0]
    assert (state.first, state.last) == (1, 10)  # nothing was dropped to make room
    assert sequence == 11
    assert [s.sequence for s in await read_all(bus, Log.REQUESTS, 6)] == [6, 7, 8, 9, 10, 11]


async def test_a_batch_waits_for_space_as_a_whole(place: Place):
    bus = await place.bus(log_bytes=1 << 20)
    ids = token_array(np.arange(25_000))
    await bus.publish_batch([a_request(group_id(n), prompt_ids=ids) for n in range(1, 8)])

    late = [a_request(group_id(n), prompt_ids=ids) for n in range(8, 13)]
    waiting = asyncio.create_task(bus.publish_batch(late))
    await asyncio.sleep(0.3)
    before = await bus.state(Log.REQUESTS)
    await bus.purge(Log.REQUESTS, 7)

    async with asyncio.timeout(10):
        assert await waiting == 12
    assert before.last == 7


async def test_a_dead_letter_keeps_body_reason_and_origin_once(bus: Bus):
    await bus.publish(a_request())
    stored = await bus.get(Log.REQUESTS, 1)
    assert stored is not None

    await bus.dead_letter(stored, "cannot be graded:\nline 2 ☂")
    await bus.dead_letter(stored, "again")

    (dead,) = await read_all(bus, Log.DEAD, 1)
    assert dead.data == stored.data
    assert dead.headers[H_DEAD_REASON].rstrip() == "cannot be graded: line 2"
    assert dead.headers[H_DEAD_SEQUENCE] == "1"
    assert dead.headers[H_GROUP] == stored.headers[H_GROUP]
    assert (await bus.state(Log.DEAD)).messages == 1


async def test_a_large_message_travels_through_the_object_store(place: Place):
    bus = await place.bus(log_bytes=1 << 20)
    event = a_large_request()

    sequence = await bus.publish(event, expect_subject=0)

    (read,) = await read_all(bus, Log.REQUESTS, 1)
    got = await bus.get(Log.REQUESTS, sequence)
    assert read.event() == event
    assert got is not None
    assert got.event() == event
    assert read.headers[H_OBJECT].startswith("groups/REQUESTS/")
    assert await bus.list_objects("groups/") == [read.headers[H_OBJECT]]
    assert (await bus.state(Log.REQUESTS)).bytes < 10_000


async def test_a_large_message_read_headers_only_is_not_fetched(place: Place):
    bus = await place.bus(log_bytes=1 << 20)
    await bus.publish(a_large_request())
    await bus.delete_object((await bus.list_objects("groups/"))[0])

    (stored,) = await read_all(bus, Log.REQUESTS, 1, headers_only=True)

    assert stored.data == b""


async def test_a_large_message_whose_object_is_gone_is_poison_not_a_hang(place: Place):
    bus = await place.bus(log_bytes=1 << 20)
    await bus.publish(a_large_request())
    await bus.delete_object((await bus.list_objects("groups/"))[0])

    (stored,) = await read_all(bus, Log.REQUESTS, 1)

    with pytest.raises(Poison):
        stored.event()


async def test_large_messages_are_compared_and_conflict_like_small_ones(place: Place):
    bus = await place.bus(log_bytes=1 << 20)
    first = await bus.publish(a_large_request(1), expect_subject=0)

    again = await bus.publish(a_large_request(1), expect_subject=0)
    with pytest.raises(Conflict):
        await bus.publish(
            a_large_request(2).model_copy(update={"group": a_request().group}), expect_subject=0
        )

    assert first == again
    assert len(await bus.list_objects("groups/")) == 1  # the refused body is not left behind


async def test_a_batch_may_hold_large_messages(place: Place):
    bus = await place.bus(log_bytes=1 << 20)
    batch = [a_request(group_id(1)), a_large_request(2), a_request(group_id(3))]

    await bus.publish_batch(batch)

    assert [s.event() for s in await read_all(bus, Log.REQUESTS, 3)] == batch


async def test_purging_deletes_the_objects_of_purged_messages_only(place: Place):
    bus = await place.bus(log_bytes=1 << 20)
    for n in range(1, 5):
        await bus.publish(a_large_request(n))

    await bus.purge(Log.REQUESTS, 2)

    kept = {s.headers[H_OBJECT] for s in await read_all(bus, Log.REQUESTS, 2)}
    assert set(await bus.list_objects("groups/")) == kept


async def test_every_process_of_the_run_answers_a_status_question(place: Place):
    asking = await place.bus()
    for role in ("learner", "policy"):
        bus = await place.bus()
        await bus.answer_status(lambda role=role: {"role": role, "waits": []})

    found = await asking.ask_status(0.3)

    assert sorted(str(status["role"]) for status in found) == ["learner", "policy"]


async def test_nobody_answers_for_a_run_without_processes(bus: Bus):
    assert await bus.ask_status(0.1) == []
