"""The dispatcher as a whole, over the memory bus, with the other stages scripted."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.errors import BadConfiguration, Replaced
from broker.memory import MemoryBus
from broker.memory_state import MemoryServer
from broker.messages import (
    EvaluationFinished,
    Event,
    GroupRequested,
    Incident,
    RunDraining,
    RunEnded,
    RunStarted,
)
from broker.topology import Log
from tests.builders import a_request
from tests.dispatcher_world import (
    Died,
    FillingBus,
    MortalBus,
    Start,
    a_run,
    a_tokenizer_folder,
    a_world,
    ask_to_stop,
    playing,
    read_all,
    the_end,
    train_requests,
    two_sources,
    until,
)
from workers.dispatcher.settings import EvaluationSettings

LIMIT_S = 30.0


class CountingBus(MemoryBus):
    """Remembers how many events were stored at once."""

    def __init__(self, server: MemoryServer, run: str) -> None:
        super().__init__(server, run)
        self.batches: list[int] = []

    async def publish_batch(self, events: Sequence[Event], *, expect_log: int | None = None) -> int:
        sequence = await super().publish_batch(events, expect_log=expect_log)
        self.batches.append(len(events))
        return sequence


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_tokenizer_folder(tmp_path_factory.mktemp("model"))


async def test_a_run_goes_to_its_last_step_and_ends(tokenizer: Path):
    start = Start(tokenizer, a_run(steps=5), two_sources(eval_items=7))
    world = a_world(start.run)
    await world.begin()

    async with playing(world), asyncio.timeout(LIMIT_S):
        await start.dispatch(world.bus)

    end, ledger = await the_end(world.bus), await read_all(world.bus, Log.LEDGER)
    assert end.status == "finished"
    assert world.version == 5
    assert [e.resumed for e in ledger if isinstance(e, RunStarted)] == [False]
    evaluated = [
        (e.version, e.benchmark, e.score) for e in ledger if isinstance(e, EvaluationFinished)
    ]
    assert sorted(evaluated) == [
        (0, "addition", 1.0), (0, "ordering", 1.0), (5, "addition", 1.0), (5, "ordering", 1.0)
    ]  # fmt: skip
    assert end.last_sequences["LEDGER"] == len(ledger) - 1


async def test_no_more_groups_are_under_way_than_the_pace_allows(tokenizer: Path):
    run = a_run(steps=20, groups_per_step=3, pace=2)
    start = Start(tokenizer, run, two_sources())
    world = a_world(run, script=lambda request: "silence")
    await world.begin()

    async with playing(world):
        task = asyncio.create_task(start.dispatch(world.bus))
        await asyncio.sleep(1.0)
        requests = await train_requests(world.bus)
        start.stop.set()
        await asyncio.wait_for(task, LIMIT_S)

    assert [r.group.group_id for r in requests] == [f"{n:08d}-0-0" for n in range(1, 10)]
    assert [r.group.request_seq for r in requests] == list(range(1, 10))
    assert Counter(r.group.domain for r in requests) == {"addition": 5, "ordering": 4}


async def test_groups_that_may_be_asked_for_at_once_are_stored_sixteen_at_a_time(tokenizer: Path):
    run = a_run(steps=20, groups_per_step=10, pace=3)
    start = Start(tokenizer, run, two_sources(eval_items=0))
    server = MemoryServer()
    world = a_world(run, server, script=lambda request: "silence")
    await world.begin()
    bus = CountingBus(server, "r")

    async with playing(world):
        task = asyncio.create_task(start.dispatch(bus))
        await until(lambda: sum(bus.batches) >= 40)
        start.stop.set()
        await asyncio.wait_for(task, LIMIT_S)

    assert bus.batches == [16, 16, 8]
    assert [r.draw for r in await train_requests(world.bus)] == list(range(1, 41))


async def test_a_failed_and_a_stale_group_are_asked_for_again_before_anything_new(tokenizer: Path):
    run = a_run(steps=6)
    start = Start(tokenizer, run, two_sources())
    fates = {"00000002-0-0": "fail", "00000003-0-0": "stale"}
    world = a_world(run, script=lambda request: fates.get(request.group.group_id, "admit"))
    await world.begin()

    async with playing(world), asyncio.timeout(LIMIT_S):
        await start.dispatch(world.bus)

    requests = {r.group.group_id: r for r in await train_requests(world.bus)}
    for draw in (2, 3):
        first, again = requests[f"{draw:08d}-0-0"], requests[f"{draw:08d}-0-1"]
        assert again.sample == first.sample
        assert again.attempt == 1
    assert not any(group_id.endswith("-2") for group_id in requests)


async def test_a_sample_that_always_fails_is_given_up_with_an_incident(tokenizer: Path):
    run = a_run(steps=8, max_attempts=3)
    start = Start(tokenizer, run, two_sources())
    world = a_world(run, script=lambda r: "fail" if r.draw == 5 else "admit")
    await world.begin()

    async with playing(world), asyncio.timeout(LIMIT_S):
        await start.dispatch(world.bus)

    attempts = [r.attempt for r in await train_requests(world.bus) if r.draw == 5]
    incidents = [e for e in await read_all(world.bus, Log.LEDGER) if isinstance(e, Incident)]
    assert attempts == [0, 1, 2]
    assert [(i.kind, i.group_id) for i in incidents] == [("sample_skipped", "00000005-0-2")]


async def test_filtered_groups_are_replaced_and_not_retried(tokenizer: Path):
    run = a_run(steps=5)
    start = Start(tokenizer, run, two_sources())
    world = a_world(run, script=lambda r: "filtered:dynamic_sampling" if r.draw % 3 else "admit")
    await world.begin()

    async with playing(world), asyncio.timeout(LIMIT_S):
        await start.dispatch(world.bus)

    assert (await the_end(world.bus)).status == "finished"
    assert {r.attempt for r in await train_requests(world.bus)} == {0}


async def test_a_run_whose_groups_are_all_filtered_stops_and_says_so(tokenizer: Path):
    run = a_run(steps=50, no_progress_steps=3)
    start = Start(tokenizer, run, two_sources())
    world = a_world(run, script=lambda r: "fail" if r.draw % 4 == 0 else "filtered:all_right")
    await world.begin()

    async with playing(world), asyncio.timeout(LIMIT_S):
        await start.dispatch(world.bus)

    end = await the_end(world.bus)
    assert end.status == "no_progress"
    assert "filtered:all_right" in end.reason


async def test_steps_without_signal_stop_the_run(tokenizer: Path):
    run = a_run(steps=50, no_progress_steps=3)
    start = Start(tokenizer, run, two_sources())
    world = a_world(run, signal=0.0)
    await world.begin()

    async with playing(world), asyncio.timeout(LIMIT_S):
        await start.dispatch(world.bus)

    end = await the_end(world.bus)
    assert end.status == "no_progress"
    assert "unequal" in end.reason


async def test_a_source_that_ends_with_half_a_batch_ends_the_run_and_trains_the_half(
    tokenizer: Path,
):
    run = a_run(steps=50)
    start = Start(tokenizer, run, two_sources(options={"items": 5, "passes": 1}))
    world = a_world(run)
    await world.begin()

    async with playing(world), asyncio.timeout(LIMIT_S):
        await start.dispatch(world.bus)

    assert (await the_end(world.bus)).status == "no_progress"
    assert len(await train_requests(world.bus)) == 10
    assert world.windows == 3


async def test_a_stop_drains_evaluates_and_ends(tokenizer: Path):
    run = a_run(steps=5000)
    start = Start(tokenizer, run, two_sources(eval_items=3))
    world = a_world(run)
    await world.begin()

    async with playing(world), asyncio.timeout(LIMIT_S):
        task = asyncio.create_task(start.dispatch(world.bus))
        await until(lambda: world.version >= 3)
        await ask_to_stop(world.bus)
        await task

    end, ledger = await the_end(world.bus), await read_all(world.bus, Log.LEDGER)
    assert end.status == "stopped"
    assert any(isinstance(e, RunDraining) for e in ledger)
    evaluated = {e.version for e in ledger if isinstance(e, EvaluationFinished)}
    assert evaluated == {0, world.version}


async def test_an_item_that_fails_is_missing_and_leaves_no_score(tokenizer: Path):
    run = a_run(steps=2)
    start = Start(tokenizer, run, two_sources(eval_items=4))
    world = a_world(run, score=lambda r: None if r.draw == 2 else 0.5)
    await world.begin()

    async with playing(world), asyncio.timeout(LIMIT_S):
        await start.dispatch(world.bus)

    ledger = await read_all(world.bus, Log.LEDGER)
    evaluation = next(e for e in ledger if isinstance(e, EvaluationFinished))
    assert evaluation.score is None
    assert evaluation.items == 4
    assert len(evaluation.missing) == 1
    assert [i.score for i in evaluation.scores] == [0.5, 0.5, None, 0.5]


async def test_an_evaluation_over_its_time_is_finished_with_what_is_missing(tokenizer: Path):
    run = a_run(steps=2)
    evaluation = EvaluationSettings(wait_s=0.5)
    start = Start(tokenizer, run, two_sources(eval_items=4), evaluation=evaluation)
    world = a_world(run)
    await world.begin()
    answer = world._measure
    world._measure = lambda r: answer(r) if r.draw else asyncio.sleep(0)  # pyright: ignore

    async with playing(world), asyncio.timeout(LIMIT_S):
        await start.dispatch(world.bus)

    ledger = await read_all(world.bus, Log.LEDGER)
    scores = [(e.score, len(e.missing)) for e in ledger if isinstance(e, EvaluationFinished)]
    assert scores == [(None, 1)] * 4


async def test_evaluations_come_every_n_steps_at_the_version_of_that_step(tokenizer: Path):
    run = a_run(steps=6)
    evaluation = EvaluationSettings(every=2)
    start = Start(tokenizer, run, two_sources(eval_items=2), evaluation=evaluation)
    world = a_world(run)
    await world.begin()
    train = world._train

    async def slowly(said: list) -> None:
        await train(said)
        await asyncio.sleep(0.1)

    world._train = slowly  # pyright: ignore

    async with playing(world), asyncio.timeout(LIMIT_S):
        await start.dispatch(world.bus)

    ledger = await read_all(world.bus, Log.LEDGER)
    found = {(e.version, e.step) for e in ledger if isinstance(e, EvaluationFinished)}
    assert found == {(0, 0), (2, 2), (4, 4), (6, 6)}


async def test_in_deterministic_mode_requests_come_in_cohorts_that_fill_one_window(tokenizer: Path):
    run = a_run(steps=4, deterministic=True, max_staleness=0, pace=0)
    start = Start(tokenizer, run, two_sources())
    world = a_world(run, script=lambda r: "filtered:x" if r.draw in (2, 3, 6) else "admit")
    await world.begin()

    async with playing(world), asyncio.timeout(LIMIT_S):
        await start.dispatch(world.bus)

    cohorts = Counter(r.cohort for r in await train_requests(world.bus))
    # 4; two dropped, so 2; one of them dropped again, so 1; then whole ones.
    assert [cohorts[number] for number in sorted(cohorts)] == [4, 2, 1, 4, 4, 4]
    assert sorted(cohorts) == list(range(1, 7))


async def test_a_rival_dispatcher_is_noticed(tokenizer: Path):
    run = a_run(steps=50)
    start = Start(tokenizer, run, two_sources())
    world = a_world(run, script=lambda r: "silence" if r.draw > 8 else "admit")
    await world.begin()

    async with playing(world):
        task = asyncio.create_task(start.dispatch(world.bus))
        await asyncio.sleep(0.7)
        await world.bus.publish(a_request("00000099-0-0"))
        world.script = lambda r: "admit"
        await world._decide([r for r in await train_requests(world.bus) if r.draw > 8][:4])

        with pytest.raises(Replaced):
            await asyncio.wait_for(task, LIMIT_S)


async def test_a_restart_with_another_configuration_is_refused_naming_the_keys(tokenizer: Path):
    run = a_run(steps=2)
    first = Start(tokenizer, run, two_sources(), config={"run": {"seed": 1, "steps": 2}})
    world = a_world(run)
    await world.begin()
    async with playing(world), asyncio.timeout(LIMIT_S):
        await first.dispatch(world.bus)

    second = Start(tokenizer, run, two_sources(), config={"run": {"seed": 2, "steps": 9}})

    with pytest.raises(BadConfiguration, match=r"these keys differ: run\.seed$"):
        await second.dispatch(world.bus, resume=True)


async def test_an_ended_run_is_left_alone_unless_it_is_resumed(tokenizer: Path):
    run = a_run(steps=2)
    world = a_world(run)
    await world.begin()
    async with playing(world), asyncio.timeout(LIMIT_S):
        await Start(tokenizer, run, two_sources()).dispatch(world.bus)
        before = await read_all(world.bus, Log.LEDGER)

        await Start(tokenizer, run, two_sources()).dispatch(world.bus)

        assert await read_all(world.bus, Log.LEDGER) == before


async def test_a_resumed_run_retries_what_the_end_cut_off_and_goes_on_with_new_draws(
    tokenizer: Path,
):
    run = a_run(steps=40, drain_wait_s=0.3)
    world = a_world(run, script=lambda r: "silence" if r.draw in (9, 10) else "admit")
    await world.begin()
    async with playing(world), asyncio.timeout(LIMIT_S):
        task = asyncio.create_task(Start(tokenizer, run, two_sources()).dispatch(world.bus))
        await until(lambda: world.windows >= 3)
        await ask_to_stop(world.bus)
        await task
        drawn = {r.draw for r in await train_requests(world.bus)}
        assert (await the_end(world.bus)).status == "stopped"
        world.script = lambda r: "admit"
        more = a_run(steps=world.windows + 8)
        await Start(tokenizer, more, two_sources()).dispatch(world.bus, resume=True)

    requests = await train_requests(world.bus)
    starts = [e for e in await read_all(world.bus, Log.LEDGER) if isinstance(e, RunStarted)]
    assert [s.resumed for s in starts] == [False, True]
    assert {(r.draw, r.attempt) for r in requests if r.draw in (9, 10)} == {
        (9, 0), (9, 1), (10, 0), (10, 1)
    }  # fmt: skip
    assert {r.draw for r in requests} == set(range(1, max(r.draw for r in requests) + 1))
    assert max(r.draw for r in requests) > max(drawn)
    assert (await the_end(world.bus)).status == "finished"


def some_fail(request: GroupRequested) -> str:
    if request.attempt == 0 and request.draw % 7 == 3:
        return "fail"
    return "filtered:x" if request.draw % 5 == 0 else "admit"


async def run_with_deaths(start: Start, deaths: Sequence[tuple[int, bool]]) -> list[GroupRequested]:
    """A run whose dispatcher dies with these publications; its train requests."""
    server = MemoryServer()
    world = a_world(start.run, server, script=some_fail)
    await world.begin()
    async with playing(world), asyncio.timeout(LIMIT_S):
        for dies_at, stored in deaths:
            with suppress(Died):
                await start.dispatch(MortalBus(server, "r", dies_at=dies_at, stored=stored))
        await start.dispatch(world.bus)
    assert (await the_end(world.bus)).status == "finished"
    ledger = await read_all(world.bus, Log.LEDGER)
    evaluated = [(e.version, e.benchmark) for e in ledger if isinstance(e, EvaluationFinished)]
    assert len(set(evaluated)) == len(evaluated)
    assert [e.missing for e in ledger if isinstance(e, EvaluationFinished)] == [()] * len(evaluated)
    return await train_requests(world.bus)


DEATHS = st.lists(st.tuples(st.integers(1, 15), st.booleans()), min_size=1, max_size=6)


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(deaths=DEATHS)
def test_a_dispatcher_killed_at_any_publication_skips_no_draw_and_asks_for_none_twice(
    tokenizer: Path, deaths: list[tuple[int, bool]]
):
    start = Start(tokenizer, a_run(steps=6, groups_per_step=3), two_sources(eval_items=3))

    requests = asyncio.run(run_with_deaths(start, deaths))

    ids = [r.group.group_id for r in requests]
    assert len(set(ids)) == len(ids)
    assert [r.group.request_seq for r in requests] == sorted(r.group.request_seq for r in requests)
    draws = [r.draw for r in requests if r.attempt == 0]
    assert draws == list(range(1, len(draws) + 1))
    assert {r.draw for r in requests if r.attempt == 1} <= {d for d in draws if d % 7 == 3}


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(deaths=DEATHS)
def test_in_deterministic_mode_a_killed_dispatcher_asks_for_exactly_the_same(
    tokenizer: Path, deaths: list[tuple[int, bool]]
):
    run = a_run(steps=5, groups_per_step=3, deterministic=True, max_staleness=0, pace=0)
    start = Start(tokenizer, run, two_sources(eval_items=3), evaluation=EvaluationSettings(every=2))

    killed = asyncio.run(run_with_deaths(start, deaths))
    undisturbed = asyncio.run(run_with_deaths(start, []))

    assert said(killed) == said(undisturbed)


def said(requests: Sequence[GroupRequested]) -> list[tuple[object, ...]]:
    """All that the same run asks for in the same way."""
    return [
        (r.group, r.sample, r.cohort, r.cohort_size, r.mixture and r.mixture.model_dump())
        for r in requests
    ]


@pytest.mark.parametrize("kept", [1, 2])
@pytest.mark.parametrize("batches", [3, 4, 5])
async def test_a_cohort_of_which_a_full_server_kept_the_beginning_is_asked_for_to_its_end(
    tokenizer: Path, batches: int, kept: int
):
    run = a_run(steps=5, groups_per_step=3, deterministic=True, max_staleness=0, pace=0)
    start = Start(tokenizer, run, two_sources(eval_items=3), evaluation=EvaluationSettings(every=2))
    server = MemoryServer()
    world = a_world(run, server, script=some_fail)
    await world.begin()

    async with playing(world), asyncio.timeout(LIMIT_S):
        with pytest.raises(Died):
            await start.dispatch(FillingBus(server, "r", batches=batches, kept=kept))
        await start.dispatch(world.bus)

    assert said(await train_requests(world.bus)) == said(await run_with_deaths(start, []))


async def test_a_begun_cohort_that_ended_with_the_run_is_not_filled_up_when_it_is_resumed(
    tokenizer: Path,
):
    run = a_run(
        steps=5, groups_per_step=3, deterministic=True, max_staleness=0, pace=0, drain_wait_s=0.3
    )
    start = Start(tokenizer, run, two_sources())
    server = MemoryServer()
    world = a_world(run, server, script=lambda r: "silence" if r.cohort == 3 else "admit")
    await world.begin()
    async with playing(world), asyncio.timeout(LIMIT_S):
        with pytest.raises(Died):
            await start.dispatch(FillingBus(server, "r", batches=3, kept=1))
        await ask_to_stop(world.bus)
        await start.dispatch(world.bus)
        assert (await the_end(world.bus)).status == "stopped"
        world.script = lambda r: "admit"
        await start.dispatch(world.bus, resume=True)

    sizes = Counter(r.cohort for r in await train_requests(world.bus))
    assert (await the_end(world.bus)).status == "finished"
    assert sizes[3] == 1
    assert all(size == 3 for cohort, size in sizes.items() if cohort != 3)


async def test_a_full_log_of_requests_does_not_delay_the_end_of_a_run(tokenizer: Path):
    run = a_run(steps=500, groups_per_step=50, drain_wait_s=0.3)
    start = Start(tokenizer, run, two_sources())
    world = a_world(run, MemoryServer(log_bytes=20_000), script=lambda r: "silence")
    await world.begin()

    async with playing(world), asyncio.timeout(LIMIT_S):
        task = asyncio.create_task(start.dispatch(world.bus))
        await until(lambda: len(world.seen) > 5)
        await asyncio.sleep(0.3)
        stuck = len(world.seen)
        await ask_to_stop(world.bus)
        await task

    assert stuck < 150
    requests = await train_requests(world.bus)
    assert [r.group.request_seq for r in requests] == list(range(1, len(requests) + 1))
    assert (await the_end(world.bus)).status == "stopped"
    assert (await the_end(world.bus)).last_sequences["REQUESTS"] == len(requests)


async def test_a_dispatcher_told_to_stop_leaves_at_once_and_ends_nothing(tokenizer: Path):
    start = Start(tokenizer, a_run(steps=500), two_sources())
    world = a_world(start.run, script=lambda r: "silence")
    await world.begin()

    async with playing(world):
        task = asyncio.create_task(start.dispatch(world.bus))
        await until(lambda: len(world.seen) > 5)
        start.stop.set()
        await asyncio.wait_for(task, 5.0)

    assert not any(isinstance(e, RunEnded) for e in await read_all(world.bus, Log.LEDGER))


async def test_what_is_waited_for_is_named(tokenizer: Path):
    start = Start(tokenizer, a_run(), two_sources())
    world = a_world(start.run)

    task = asyncio.create_task(start.dispatch(world.bus))
    await until(lambda: "learner" in str(start.health.status()["waits"]))
    await world.bus.publish(world._weights())
    await until(lambda: "policy" in str(start.health.status()["waits"]))
    start.stop.set()
    await asyncio.wait_for(task, 5.0)


async def test_data_that_changed_under_a_run_is_refused(tokenizer: Path):
    run = a_run(steps=2)
    world = a_world(run)
    await world.begin()
    async with playing(world), asyncio.timeout(LIMIT_S):
        await Start(tokenizer, run, two_sources()).dispatch(world.bus)

    changed = Start(tokenizer, run, two_sources(options={"items": 200, "seed": 9}))

    with pytest.raises(BadConfiguration, match=r"source\.addition: the run has drawn from"):
        await changed.dispatch(world.bus, resume=True)
