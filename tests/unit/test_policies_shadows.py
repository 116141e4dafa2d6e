"""Shadow policies: recorded beside the live one, changing nothing of it, the same after any death."""

import asyncio

import pytest

from broker.bus import Bus
from broker.errors import BadConfiguration
from broker.messages import GroupAnnotated, ReaderAdvanced, ShadowDecided
from broker.topology import Log
from tests.policy_builders import a_group_event, an_arrival, told
from tests.policy_run import (
    MIXED,
    SETTINGS,
    SOLVED,
    Died,
    Mortal,
    a_bus,
    a_drain,
    advanced,
    annotated,
    decided,
    fill,
    ledger,
    outcome,
    plain,
    work,
    work_until,
)
from workers.policies import shadows
from workers.policies.decisions import Closed, Rules, Snapshot
from workers.policies.program import Program
from workers.policies.settings import PolicySettings
from workers.policies.shadows import Shadowed
from workers.policies.windows import WindowMachine

WITH_SHADOWS = PolicySettings.model_validate(
    {
        "admit": ["dynamic_sampling"],
        "refill_rounds": 3,
        "shadow": [
            {"preset": "difffilter"},
            {"preset": "dbb", "name": "remembering"},
            {"preset": "dataflex:softmax"},
        ],
    }
)
GROUPS = 9
"""Of the log that were graded; one failed."""


async def opinions(bus: Bus) -> list[ShadowDecided]:
    return [e for e in await ledger(bus, ShadowDecided) if isinstance(e, ShadowDecided)]


async def told_by(bus: Bus) -> list[object]:
    found = await opinions(bus)
    return plain(sorted(found, key=lambda e: (e.policy, e.group.request_seq)))


def over(bus: Bus):
    """The log's windows are closed, and every shadow has spoken about all of them."""

    async def check() -> bool:
        seen = [e.window for e in await opinions(bus)]
        return len(await annotated(bus)) >= 9 and seen.count(2) >= 9

    return check


async def test_shadows_speak_of_every_graded_group_and_leave_the_live_decisions_alone():
    bus, alone = a_bus(), a_bus()
    await fill(bus)
    await fill(alone)

    await work_until(bus, over(bus), settings=WITH_SHADOWS)
    await work_until(alone, decided(9, alone), settings=SETTINGS)

    live, _ = await outcome(bus)
    assert live == (await outcome(alone))[0]
    found = await opinions(bus)
    assert {e.policy for e in found} == {"difffilter", "remembering", "dataflex-softmax"}
    by_group = {e.group.request_seq: e for e in found if e.policy == "remembering"}
    # The live policy dropped the solved groups; the shadow that remembers has a use for them.
    assert by_group[2].outcome == "admitted"
    assert all(row.weight > 0 and row.advantage for row in by_group[2].annotations)
    seen = [e.group.request_seq for e in found if e.policy == "difffilter"]
    windows = {e.group.request_seq: e.window for e in found}
    for event in await annotated(bus):
        if isinstance(event, GroupAnnotated) and event.outcome == "admitted":
            assert windows[event.group.request_seq] == event.window
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("lives", range(1, 17))
async def test_killed_at_any_publication_shadows_and_live_policy_decide_as_if_undisturbed(
    lives, stored
):
    bus, undisturbed = a_bus(), a_bus()
    await fill(bus)
    await fill(undisturbed)

    await work_until(undisturbed, over(undisturbed), settings=WITH_SHADOWS)
    mortal = Mortal(bus, lives, stored=stored)
    async with asyncio.timeout(10):
        with pytest.raises(Died):
            await work(mortal, settings=WITH_SHADOWS)  # pyright: ignore[reportArgumentType]
    await work_until(bus, over(bus), settings=WITH_SHADOWS)

    assert await told_by(bus) == await told_by(undisturbed)
    assert await outcome(bus) == await outcome(undisturbed)


async def test_what_a_shadow_says_is_durable_before_the_policy_says_that_the_window_is():
    bus = a_bus()
    for number in range(1, 40):
        await bus.publish(a_group_event(number, MIXED))

    await work_until(bus, lambda: advanced(bus), settings=WITH_SHADOWS)

    said = await bus.last(Log.LEDGER, "sluice.r.reader_advanced.policy.VERIFIED")
    assert said is not None
    event = said.event()
    assert isinstance(event, ReaderAdvanced)
    spoken = {e.verified_seq for e in await opinions(bus) if e.policy == "difffilter"}
    assert set(range(1, event.sequence + 1)) <= spoken


async def test_a_shadow_without_a_memory_leaves_every_window_durable_at_once():
    settings = PolicySettings.model_validate({"shadow": [{"preset": "difffilter"}]})
    bus = a_bus()
    for number in (1, 2):
        await bus.publish(a_group_event(number, MIXED))

    await work_until(bus, lambda: advanced(bus), settings=settings)

    assert len(await bus.list_objects("snapshots/")) == 1


async def test_at_the_end_shadows_speak_of_groups_that_no_window_took():
    bus = a_bus()
    await bus.publish(a_group_event(1, SOLVED))
    await bus.publish(a_drain("00000001-0-0"))

    async def spoken() -> bool:
        return len(await opinions(bus)) == 3

    await work_until(bus, spoken, settings=WITH_SHADOWS)

    (about,) = (e for e in await opinions(bus) if e.policy == "difffilter")
    assert (about.outcome, about.window) == ("admitted", 1)
    assert [row.weight for row in about.annotations] == [0.0, 0.0]


def test_the_memory_of_a_shadow_is_in_the_snapshot():
    live, rules = Program(WITH_SHADOWS), Rules(groups_per_step=1, refill_limit=9)
    first = WindowMachine(live, rules, {"math": 1.0}, shadows=shadows.build(WITH_SHADOWS))
    (closed,) = first.feed(an_arrival(1, a_group_event(1, MIXED, key="d:1:7")))
    assert isinstance(closed, Closed)
    assert closed.snapshot is not None
    snapshot = Snapshot.model_validate_json(closed.snapshot)
    remembered = snapshot.model_copy(deep=True).shadows["remembering"]
    second = WindowMachine(
        live, rules, {"math": 1.0}, snapshot=snapshot,
        shadows=shadows.build(WITH_SHADOWS),
    )  # fmt: skip
    again = an_arrival(2, a_group_event(2, MIXED, key="d:1:7"))

    assert told(first.feed(again)) == told(second.feed(again))
    assert remembered["dbb"] == {"d:1:7": [1.5, 1.5]}


def test_a_dropped_member_takes_its_bundle_along_in_the_shadow_too():
    rules = Rules(groups_per_step=2, refill_limit=9)
    settings = PolicySettings.model_validate({"shadow": [{"admit": ["dynamic_sampling"]}]})
    machine = WindowMachine(
        Program(settings), rules, {"math": 1.0}, shadows=shadows.build(settings)
    )

    decisions = [
        machine.feed(an_arrival(n, a_group_event(n, scores, bundle="b", bundle_size=2)))
        for n, scores in ((1, MIXED), (2, SOLVED))
    ]

    (closed,) = decisions[1]
    assert isinstance(closed, Closed)
    (shadowed,) = closed.shadowed
    assert isinstance(shadowed, Shadowed)
    assert [o.reason for o in shadowed.opinions] == ["bundle", "filtered:dynamic_sampling"]


@pytest.mark.parametrize(
    ("table", "names"),
    [
        ([{"preset": "difffilter"}, {"preset": "difffilter"}], "difffilter, difffilter: expected"),
        ([{"preset": "dump_ucb"}], "policy.shadow mixer 'dump_ucb': expected static"),
        ([{"preset": "difffilte"}], "policy.preset 'difffilte'"),
    ],
)
def test_shadows_that_cannot_be_told_apart_or_cannot_work_are_refused(table, names):
    settings = PolicySettings.model_validate({"shadow": table})

    with pytest.raises(BadConfiguration, match=names):
        shadows.build(settings)
