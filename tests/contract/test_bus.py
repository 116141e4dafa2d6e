"""What every bus promises about logs, in memory and on JetStream alike."""

import asyncio

import pytest

from broker.bus import Bus
from broker.errors import Conflict
from broker.packing import H_DEAD_REASON, H_DEAD_SEQUENCE
from broker.topology import H_GROUP, Log, kind_subjects
from tests.builders import a_generated, a_request
from tests.contract.conftest import Place
from tests.contract.logs import group_id, read_all


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


async def test_every_process_of_the_run_answers_a_status_question(place: Place):
    asking = await place.bus()
    for role in ("learner", "policy"):
        bus = await place.bus()
        await bus.answer_status(lambda role=role: {"role": role, "waits": []})

    found = await asking.ask_status(0.3)

    assert sorted(str(status["role"]) for status in found) == ["learner", "policy"]


async def test_nobody_answers_for_a_run_without_processes(bus: Bus):
    assert await bus.ask_status(0.1) == []
