"""The policy role over the bus: fenced, restartable at any point, draining, and in cohorts."""

import asyncio

import pytest

from broker.errors import BadConfiguration, Replaced
from broker.memory import MemoryServer
from broker.messages import (
    GroupAnnotated,
    MixtureUpdated,
    PlannedGroup,
    ReaderAdvanced,
    StepPlanned,
)
from broker.telemetry import Health
from broker.topology import H_COHORT_END, Log
from tests.builders import AT_US, WRITER
from tests.policy_builders import a_group_event
from tests.policy_run import (
    MIXED,
    SETTINGS,
    SHARES,
    SOLVED,
    Died,
    Filling,
    Mortal,
    a_bus,
    a_drain,
    a_start,
    advanced,
    an_end,
    annotated,
    decided,
    everything,
    fill,
    ledger,
    outcome,
    poll,
    run_settings,
    started,
    unreadable,
    work,
    work_until,
)
from workers.policies import worker

# --- what is published ------------------------------------------------------------------------


async def test_drops_come_at_once_and_a_window_as_one_batch_after_its_mixture():
    bus = a_bus()
    for number, scores in enumerate([MIXED, SOLVED, MIXED], start=1):
        await bus.publish(a_group_event(number, scores, requested={"math": number, "logic": 0}))

    await work_until(bus, decided(3, bus))

    dropped, first, second = await annotated(bus)
    assert (dropped.outcome, dropped.reason) == ("dropped", "filtered:dynamic_sampling")
    assert (dropped.generations, len(dropped.annotations)) == ((), 2)
    assert [e.outcome for e in (first, second)] == ["admitted", "admitted"]
    assert [(e.window, e.window_size, e.window_index, e.cut) for e in (first, second)] == [
        (1, 2, 0, 3), (1, 2, 1, 3),
    ]  # fmt: skip
    assert [a.advantage for a in first.annotations] == pytest.approx([0.7071, -0.7071], abs=1e-3)
    start, update = await ledger(bus, MixtureUpdated)
    assert isinstance(start, MixtureUpdated)
    assert isinstance(update, MixtureUpdated)
    assert (start.update_no, [d.target for d in start.domains]) == (0, [0.5, 0.5])
    assert (update.update_no, update.cut, update.request_seq) == (1, 3, 3)
    assert update.domains[0].requested == 3


async def test_after_a_window_the_state_is_durable_and_older_snapshots_are_gone():
    bus = a_bus()
    for number in range(1, 5):
        await bus.publish(a_group_event(number, MIXED))

    async def twice() -> bool:
        found = await ledger(bus, ReaderAdvanced)
        return len([a for a in found if isinstance(a, ReaderAdvanced) and a.log == Log.LEDGER]) == 2

    await work_until(bus, twice)

    found = [a for a in await ledger(bus, ReaderAdvanced) if isinstance(a, ReaderAdvanced)]
    assert [(a.log, a.sequence) for a in found if a.log != Log.LEDGER] == [
        ("VERIFIED", 2), ("ANNOTATED", 2), ("VERIFIED", 4), ("ANNOTATED", 4),
    ]  # fmt: skip
    newest = [a for a in found if a.log == Log.VERIFIED][-1]
    assert await bus.list_objects("snapshots/") == [f"snapshots/policy-{newest.snapshot_digest}"]


async def test_groups_for_evaluation_are_none_of_its_business():
    bus = a_bus()
    event = a_group_event(1, MIXED)
    measured = event.group.model_copy(update={"purpose": "eval"})
    await bus.publish(event.model_copy(update={"group": measured}))
    await bus.publish(a_group_event(2, failed=True))

    await work_until(bus, decided(1, bus))

    assert [e.group.group_id for e in await annotated(bus)] == ["00000002-0-0"]


async def test_an_unreadable_group_ends_as_failed_and_is_kept_aside():
    bus = a_bus()
    await bus.publish(unreadable(a_group_event(1, MIXED)))

    await work_until(bus, decided(1, bus))

    (failed,) = await annotated(bus)
    assert failed.outcome == "failed"
    assert "schema 99" in failed.reason
    assert (await bus.state(Log.DEAD)).messages == 1


async def test_more_groups_a_window_than_a_batch_holds_are_refused():
    with pytest.raises(BadConfiguration, match="at most 1000"):
        await work(a_bus(), groups_per_step=1001)


# --- one writer -------------------------------------------------------------------------------


async def test_a_worker_whose_successor_has_published_is_replaced():
    server = MemoryServer()
    bus = a_bus(server)
    stop = asyncio.Event()
    old = asyncio.create_task(work(a_bus(server), stop))
    async with asyncio.timeout(5):
        await poll(lambda: started(bus))

    rival = a_group_event(1, failed=True)
    await bus.publish(
        GroupAnnotated(
            writer_id="rival", at_us=AT_US, group=rival.group, outcome="failed", reason="engine",
            request=None, generations=(), annotations=(), window=None, window_size=None,
            window_index=None, cut=None, verified_seq=1, policy="p", policy_version="1",
        )
    )  # fmt: skip
    await bus.publish(a_group_event(2, failed=True))

    with pytest.raises(Replaced, match="last written by rival"):
        async with asyncio.timeout(5):
            await old


# --- restart ----------------------------------------------------------------------------------


async def undisturbed(**changes: object) -> tuple[object, object]:
    bus = a_bus()
    await fill(bus, cohorts=bool(changes))
    await work_until(bus, decided(9, bus), **changes)
    return await outcome(bus)


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("lives", range(1, 17))
async def test_killed_at_any_publication_the_successor_decides_as_if_undisturbed(lives, stored):
    bus = a_bus()
    await fill(bus)

    async with asyncio.timeout(10):
        with pytest.raises(Died):
            await work(Mortal(bus, lives, stored=stored))  # pyright: ignore[reportArgumentType]
    await work_until(bus, decided(9, bus))

    assert await outcome(bus) == await undisturbed()


@pytest.mark.parametrize("changes", [{}, {"deterministic": True, "max_staleness": 0}])
@pytest.mark.parametrize("batches", [1, 2])
async def test_a_batch_of_which_a_full_server_stored_the_beginning_is_finished_by_the_successor(
    batches: int, changes: dict[str, object]
):
    bus = a_bus()
    await fill(bus, cohorts=bool(changes))

    async with asyncio.timeout(10):
        with pytest.raises(Died):
            await work(Filling(bus, batches), **changes)  # pyright: ignore[reportArgumentType]
    await work_until(bus, decided(9, bus), **changes)

    assert await outcome(bus) == await undisturbed(**changes)


async def test_killed_at_every_publication_it_still_gets_through():
    bus = a_bus()
    await fill(bus)

    async with asyncio.timeout(20):
        while len(await annotated(bus)) < 9:
            with pytest.raises(Died):
                await work(Mortal(bus, 1, stored=True))  # pyright: ignore[reportArgumentType]

    assert await outcome(bus) == await undisturbed()


@pytest.mark.parametrize("lives", range(1, 10))
async def test_killed_at_any_publication_cohorts_are_decided_as_if_undisturbed(lives):
    bus = a_bus()
    await fill(bus, cohorts=True)
    deterministic = {"deterministic": True, "max_staleness": 0}
    stop = asyncio.Event()

    async with asyncio.timeout(10):
        try:
            mortal = Mortal(bus, lives, stored=bool(lives % 2))
            asyncio.get_running_loop().call_later(1.0, stop.set)
            await worker.run(
                mortal,  # pyright: ignore[reportArgumentType]
                run=run_settings(**deterministic), settings=SETTINGS, shares=SHARES,
                health=Health("policy"), stop=stop,
            )  # fmt: skip
        except Died:
            pass
    await work_until(bus, decided(9, bus), **deterministic)

    assert await outcome(bus) == await undisturbed(**deterministic)


async def test_purging_what_every_reader_has_passed_changes_no_decision():
    bus = a_bus()
    await fill(bus)
    await work_until(bus, lambda: advanced(bus))
    for log in (Log.VERIFIED, Log.ANNOTATED):
        said = await bus.last(Log.LEDGER, f"sluice.r.reader_advanced.policy.{log}")
        if said is not None:
            event = said.event()
            assert isinstance(event, ReaderAdvanced)
            await bus.purge(log, event.sequence)
    for number in (11, 12, 13):
        await bus.publish(a_group_event(number, MIXED))

    async def over() -> bool:
        return any(e.window == 4 for e in await annotated(bus))

    await work_until(bus, over)

    assert [e.group.request_seq for e in await annotated(bus) if e.window == 4] == [12, 13]
    mixtures = [m for m in await ledger(bus, MixtureUpdated) if isinstance(m, MixtureUpdated)]
    assert mixtures[-1].domains[0].admitted == 8


# --- deterministic mode -----------------------------------------------------------------------


async def test_a_cohorts_decisions_are_one_batch_with_its_end_marked():
    bus = a_bus()
    await fill(bus, cohorts=True)

    await work_until(bus, decided(9, bus), deterministic=True, max_staleness=0)

    stored = await everything(bus, Log.ANNOTATED)
    found = await annotated(bus)
    ends = [H_COHORT_END in s.headers for s in stored]
    # Cohorts: 1+2 drop one; 3+4 complete window 1 and drop one; ...
    assert [(e.group.request_seq, e.outcome) for e in found[:4]] == [
        (2, "dropped"), (4, "dropped"), (1, "admitted"), (3, "admitted"),
    ]  # fmt: skip
    assert ends[:4] == [True, False, False, True]


async def test_the_mixture_counts_every_step_that_is_planned_when_its_window_closes():
    bus = a_bus()
    planned = tuple(
        PlannedGroup(group_id=f"g{n}", domain=domain, stream_seq=n, staleness=0)
        for n, domain in enumerate(["math", "math", "logic"])
    )
    await bus.publish(
        StepPlanned(
            writer_id=WRITER, at_us=AT_US, step=1, version=0, groups=planned, dropped=(), cursor=3
        )
    )
    for number in (1, 2):
        await bus.publish(a_group_event(number, MIXED, cohort=(1, 2)))

    await work_until(bus, decided(2, bus), deterministic=True, max_staleness=0)

    update = (await ledger(bus, MixtureUpdated))[-1]
    assert isinstance(update, MixtureUpdated)
    assert (update.step, [d.trained for d in update.domains]) == (1, [2, 1])


# --- the end of a run -------------------------------------------------------------------------


async def test_draining_closes_the_window_as_soon_as_the_open_groups_were_seen():
    bus = a_bus()
    await bus.publish(a_start())
    await bus.publish(a_group_event(1, MIXED))
    await bus.publish(a_drain("00000001-0-0"))

    await work_until(bus, decided(1, bus), drain_wait_s=60.0)
    await bus.publish(a_group_event(2, MIXED))
    await work_until(bus, decided(2, bus), drain_wait_s=60.0)

    closed, late = await annotated(bus)
    assert (closed.outcome, closed.window_size) == ("admitted", 1)
    assert (late.outcome, late.reason) == ("dropped", "run_ended")


async def test_draining_waits_for_a_missing_group_no_longer_than_it_may():
    bus = a_bus()
    await bus.publish(a_start())
    await bus.publish(a_group_event(1, MIXED))
    await bus.publish(a_drain("00000001-0-0", "00000002-0-0"))

    await work_until(bus, decided(1, bus), drain_wait_s=0.3)

    assert [e.outcome for e in await annotated(bus)] == ["admitted"]


async def test_it_returns_when_the_run_has_ended():
    bus = a_bus()
    await bus.publish(a_start())
    await bus.publish(an_end())

    async with asyncio.timeout(5):
        await work(bus)

    assert await annotated(bus) == []


async def test_a_resumed_run_goes_on_without_the_groups_of_its_end():
    bus = a_bus()
    await bus.publish(a_start())
    await bus.publish(a_group_event(1, MIXED))
    await bus.publish(a_drain("00000001-0-0"))
    await bus.publish(an_end(REQUESTS=1, VERIFIED=1, ANNOTATED=0))
    await bus.publish(a_start(resumed=True))
    for number in (2, 3):
        await bus.publish(a_group_event(number, MIXED))

    await work_until(bus, decided(2, bus))

    assert [e.group.request_seq for e in await annotated(bus)] == [2, 3]


async def test_a_run_resumed_after_its_drain_opens_windows_again():
    bus = a_bus()
    await bus.publish(a_start())
    await bus.publish(a_group_event(1, MIXED))
    await bus.publish(a_drain("00000001-0-0"))
    await work_until(bus, lambda: advanced(bus))
    await bus.publish(an_end(REQUESTS=1, VERIFIED=1, ANNOTATED=1))
    await bus.publish(a_start(resumed=True))
    for number in (2, 3):
        await bus.publish(a_group_event(number, MIXED))

    await work_until(bus, decided(3, bus))

    assert [(e.group.request_seq, e.window) for e in await annotated(bus)] == [
        (1, 1),
        (2, 2),
        (3, 2),
    ]
