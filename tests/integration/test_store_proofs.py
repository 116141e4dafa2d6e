"""The nine proofs: they hold for an honest run, and each fails on what it is there to find."""

import pytest

from broker.errors import BadConfiguration
from broker.memory import MemoryBus, MemoryServer
from broker.messages import StepPlanned
from broker.topology import Log
from store.audit import CLAIMS, Proof, verify
from store.database import connect
from tests.store_tables import LOGS, write, write_run
from tests.store_world import (
    RUN,
    World,
    a_small_run,
    admit,
    ask,
    commit,
    mixture,
    started,
    undecided,
    weights,
)


async def a_bus_with(world: World) -> MemoryBus:
    bus = MemoryBus(MemoryServer(log_bytes=64 << 20), RUN)
    await world.publish(bus)
    return bus


async def proofs(url: str, bus: MemoryBus | None = None) -> dict[str, Proof]:
    return {proof.name: proof for proof in await verify(url, RUN, bus)}


def failed(found: dict[str, Proof]) -> set[str]:
    return {name for name, proof in found.items() if not proof.ok}


@pytest.fixture
def recorded_url(postgres_url: str) -> str:
    """A database with the small run in it."""
    with connect(postgres_url) as connection:
        write_run(connection, RUN, a_small_run())
    return postgres_url


async def test_all_nine_hold_for_an_honest_run(recorded_url: str):
    found = await proofs(recorded_url, await a_bus_with(a_small_run()))

    assert list(found) == list(CLAIMS)
    assert failed(found) == set()
    assert found["agrees_with_logs"].detail.startswith("REQUESTS: 12 messages, to 12")


async def test_all_hold_while_the_run_is_live_and_groups_are_in_flight(postgres_url: str):
    world = a_small_run(ended=False)
    ask(world, 13)
    with connect(postgres_url) as connection:
        write(connection, RUN, [m for log in LOGS for m in world.stored(log)])

    found = await proofs(postgres_url, await a_bus_with(world))

    assert failed(found) == set()
    assert found["one_end"].detail.endswith("the run goes on")


async def test_second_copies_that_a_mistaken_worker_stored_are_counted_and_not_missed(
    postgres_url: str,
):
    world = a_small_run(ended=False)
    world.say(world.logs[Log.GENERATED][3], world.logs[Log.VERIFIED][4])
    with connect(postgres_url) as connection:
        write(connection, RUN, [m for log in LOGS for m in world.stored(log)])

    found = await proofs(postgres_url, await a_bus_with(world))

    assert failed(found) == set()
    assert "GENERATED: 11 messages, to 12, 1 second copies" in found["agrees_with_logs"].detail


async def test_a_live_run_whose_logs_are_recorded_unevenly_is_not_accused(postgres_url: str):
    world = a_small_run(ended=False)
    with connect(postgres_url) as connection:
        write(connection, RUN, world.stored(Log.LEDGER))

    found = await proofs(postgres_url, await a_bus_with(world))

    assert failed(found) == set()


VIOLATIONS = {
    "an older token": (
        "staleness_bound",
        "UPDATE generation SET version_min = 0, version_max = 3 WHERE group_id = '00000007-0-0';"
        "UPDATE learner_step SET start_version = 4 WHERE step = 2",
    ),
    "a staleness that is not what the learner said": (
        "staleness_bound",
        "UPDATE batch_member SET staleness = 0 WHERE group_id = '00000008-0-0'",
    ),
    "no answers to look at": (
        "staleness_bound", "DELETE FROM generation WHERE group_id = '00000010-0-0'"),
    "no bound to hold against": ("staleness_bound", "UPDATE run SET config = '{}'"),
    "a group in two steps": (
        "trained_once", "INSERT INTO batch_member VALUES ('run', 3, '00000004-0-0', 1, 0, 777)"),
    "a message trained as two groups": (
        "trained_once", "UPDATE batch_member SET stream_seq = 10 WHERE group_id = '00000005-0-0'"),
    "a group without an end": (
        "one_end",
        "INSERT INTO prompt_group (run_id, group_id, state, ends, request_seq, requests_seq) "
        "VALUES ('run', 'x', 'verified', 0, 13, 13)",
    ),
    "two ends": ("one_end", "UPDATE prompt_group SET ends = 3 WHERE group_id = '00000004-0-0'"),
    "a group that nobody asked for": (
        "one_end", "UPDATE prompt_group SET requests_seq = NULL WHERE group_id = '00000006-0-0'"),
    "a trained group that no step names": (
        "one_end", "DELETE FROM batch_member WHERE group_id = '00000004-0-0'"),
    "a step's group that ended otherwise": (
        "one_end",
        "INSERT INTO batch_member VALUES ('run', 3, '00000006-0-0', 1, 2, 777)",
    ),
    "a measured train group": (
        "one_end",
        "UPDATE prompt_group SET purpose = 'train' WHERE group_id = 'v000000-math-00000-0'",
    ),
    "a request that is missing": (
        "one_end", "DELETE FROM prompt_group WHERE group_id = '00000006-0-0'"),
    "a step that is missing": ("steps_contiguous", "DELETE FROM learner_step WHERE step = 2"),
    "a step never committed": (
        "steps_contiguous", "UPDATE learner_step SET status = 'planned' WHERE step = 1"),
    "a version that jumps": (
        "steps_contiguous", "UPDATE learner_step SET weights_version = 5 WHERE step = 3"),
    "a skipped step with a new version": (
        "steps_contiguous", "UPDATE learner_step SET status = 'skipped' WHERE step = 2"),
    "a step from another version": (
        "steps_contiguous",
        "UPDATE learner_step SET start_version = 5, weights_version = 6 WHERE step = 3",
    ),
    "other weights than committed": (
        "steps_contiguous", "UPDATE weights SET digest = 'other' WHERE version = 2"),
    "weights never published": ("steps_contiguous", "DELETE FROM weights WHERE version = 3"),
    "a member too few": (
        "batch_counts", "DELETE FROM batch_member WHERE group_id = '00000005-0-0'"),
    "an answer too few": (
        "batch_counts",
        "DELETE FROM generation WHERE group_id = '00000005-0-0' AND generation_index = 1",
    ),
    "tokens that do not add up": (
        "batch_counts", "UPDATE learner_step SET tokens = tokens + 1 WHERE step = 1"),
    "a state that its events do not give": (
        "supervision_fold", "UPDATE supervision_state SET visits = 9"),
    "a state without events": (
        "supervision_fold",
        "INSERT INTO supervision_state (run_id, sample_key, last_event_id) VALUES ('run', 's', 1)",
    ),
    "events without a state": ("supervision_fold", "DELETE FROM supervision_state"),
    "a mixture that counts more requests": (
        "mixture_counts", "UPDATE mixture SET requested = requested + 1 WHERE update_no = 3"),
    "a mixture that counts verified groups too early": (
        "mixture_counts", "UPDATE mixture SET generated = 1 WHERE update_no = 0"),
    "a mixture that counts fewer admitted": (
        "mixture_counts", "UPDATE mixture SET admitted = 5 WHERE update_no = 3"),
    "a mixture that counts more trained": (
        "mixture_counts", "UPDATE mixture SET trained = 5 WHERE update_no = 3"),
    "a token without a finite log-probability": (
        "logprobs_complete",
        "UPDATE generation SET logprob_count = 2 WHERE group_id = '00000004-0-0'",
    ),
    "token ids that do not fit their number": (
        "logprobs_complete",
        "UPDATE generation SET token_ids = '\\x00' WHERE group_id = '00000004-0-0'",
    ),
    "fewer answers than asked for": (
        "logprobs_complete", "UPDATE prompt_group SET size = 3 WHERE group_id = '00000004-0-0'"),
    "a group that was not recorded": (
        "agrees_with_logs",
        "UPDATE prompt_group SET generated_seq = NULL WHERE group_id = '00000004-0-0'",
    ),
    "a group recorded as an earlier message than its own": (
        "agrees_with_logs",
        "UPDATE prompt_group SET generated_seq = generated_seq - 1 WHERE group_id = '00000004-0-0'",
    ),
    "a group recorded as a later message than its own": (
        "agrees_with_logs",
        "UPDATE prompt_group SET generated_seq = generated_seq + 1 WHERE group_id = '00000004-0-0'",
    ),
    "a group recorded from elsewhere": (
        "agrees_with_logs",
        "INSERT INTO prompt_group (run_id, group_id, state, ends, annotated_seq) "
        "VALUES ('run', 'x', 'annotated', 0, 3)",
    ),
    "a ledger event that was not recorded": ("agrees_with_logs", "DELETE FROM incident"),
    "a log not recorded to its end": (
        "agrees_with_logs", "UPDATE recorder_cursor SET sequence = 3 WHERE log = 'VERIFIED'"),
}  # fmt: skip


@pytest.mark.parametrize("violation", VIOLATIONS)
async def test_a_violation_is_found_by_its_proof(recorded_url: str, violation: str):
    name, statement = VIOLATIONS[violation]
    with connect(recorded_url) as connection:
        for part in statement.split(";"):
            connection.execute(part.encode())

    found = await proofs(recorded_url, await a_bus_with(a_small_run()))

    assert name in failed(found), violation
    assert found[name].examples
    assert "against it" in found[name].detail or name == "agrees_with_logs"


def test_there_is_a_violation_for_every_proof():
    assert {name for name, _ in VIOLATIONS.values()} == set(CLAIMS)


async def test_without_a_bus_the_ninth_is_not_proved_and_says_so(recorded_url: str):
    found = await proofs(recorded_url)

    assert failed(found) == {"agrees_with_logs"}
    assert found["agrees_with_logs"].detail == "not proved: no broker was given"


async def test_a_log_that_was_lost_is_found(recorded_url: str):
    bus = MemoryBus(MemoryServer(log_bytes=64 << 20), RUN)
    await a_small_run().publish(bus, [log for log in LOGS if log is not Log.GENERATED])

    found = await proofs(recorded_url, bus)

    assert failed(found) == {"agrees_with_logs"}
    assert found["agrees_with_logs"].examples[0]["problem"] == "the log ends at 0, before 11"


async def test_purged_messages_are_said_and_not_missed(recorded_url: str):
    bus = await a_bus_with(a_small_run())
    await bus.purge(Log.GENERATED, 5)
    await bus.purge(Log.LEDGER, 10, keep_last_per_subject=True)

    found = await proofs(recorded_url, bus)

    assert failed(found) == set()
    assert "others purged" in found["agrees_with_logs"].detail
    assert "GENERATED: 6 messages, from 6, to 11" in found["agrees_with_logs"].detail


async def test_a_learner_that_trains_too_old_a_group_is_found_from_the_events_alone(
    postgres_url: str,
):
    world = World()
    world.say(started(), mixture(0, step=0, request_seq=0, cut=0, counts=(0, 0, 0, 0)), weights(0))
    old = ask(world, 1)
    for number in range(2, 5):
        request = ask(world, number)
        admit(world, [request], window=number - 1, version=number - 2)
        commit(world, number - 1, version=number - 2, groups=[request])
    admit(world, [old], window=4, version=0)
    commit(world, 4, version=3, groups=[old], staleness=3)
    with connect(postgres_url) as connection:
        write(connection, RUN, [m for log in LOGS for m in world.stored(log)])

    found = await proofs(postgres_url, await a_bus_with(world))

    assert failed(found) == {"staleness_bound"}
    (example,) = found["staleness_bound"].examples
    assert (example["group_id"], example["problem"]) == ("00000001-0-0", "too old")


async def test_a_group_dropped_by_the_policy_and_trained_all_the_same_is_found(postgres_url: str):
    world = a_small_run(ended=False)
    place = len(world.logs[Log.VERIFIED])
    request = world.logs[Log.REQUESTS][3]
    world.say(undecided(request, "dropped", "filtered:equal", place))
    with connect(postgres_url) as connection:
        write(connection, RUN, [m for log in LOGS for m in world.stored(log)])

    found = await proofs(postgres_url)

    assert found["one_end"].examples[0]["problem"] == "ended in several ways"


async def test_a_copy_behind_one_that_the_policy_could_not_read_was_not_counted(recorded_url: str):
    async def counts_after(change: str) -> bool:
        with connect(recorded_url) as connection:
            assert connection.execute(change).rowcount == 1
        return (await proofs(recorded_url))["mixture_counts"].ok

    assert await counts_after("UPDATE mixture SET cut = 1000, generated = 7 WHERE update_no = 3")
    # The failed group's verdicts come once more, whole.
    failed_one = "group_id = '00000009-0-0'"
    assert not await counts_after(f"UPDATE prompt_group SET verified_ok = true WHERE {failed_one}")
    earlier = "UPDATE group_decision SET verified_seq = verified_seq - 1"
    assert await counts_after(f"{earlier} WHERE {failed_one}")


async def test_a_step_redone_and_published_again_as_the_next_version_is_allowed(postgres_url: str):
    world = World()
    world.say(started(), weights(0))
    one, two = ask(world, 1), ask(world, 2)
    admit(world, [one], window=1, version=0)
    commit(world, 1, version=0, groups=[one])
    world.say(weights(2, step=1))
    admit(world, [two], window=2, version=2)
    commit(world, 2, version=2, groups=[two])
    with connect(postgres_url) as connection:
        write(connection, RUN, [m for log in LOGS for m in world.stored(log)])

    assert failed(await proofs(postgres_url, await a_bus_with(world))) == set()
    planned = [event for event in world.logs[Log.LEDGER] if isinstance(event, StepPlanned)]
    assert [event.version for event in planned] == [0, 2]


async def test_an_unknown_run_is_an_error_not_a_proof(postgres_url: str):
    with pytest.raises(BadConfiguration, match="run 'run': the store knows no such run"):
        await verify(postgres_url, RUN, None)
