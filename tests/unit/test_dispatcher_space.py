"""When space runs out: nothing is asked for that cannot be finished, and what may go makes room."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from broker.errors import BadConfiguration, Replaced
from broker.memory import MemoryBus
from broker.memory_state import MemoryServer
from broker.messages import Event, LogPurged, ReaderAdvanced
from broker.telemetry import Health
from broker.topology import Log
from tests.builders import AT_US, WRITER
from tests.dispatcher_world import (
    Start,
    World,
    a_run,
    a_tokenizer_folder,
    a_world,
    playing,
    read_all,
    the_end,
    two_sources,
    until,
)
from workers.dispatcher import janitor as module
from workers.dispatcher import worker
from workers.dispatcher.following import catch_up
from workers.dispatcher.janitor import Janitor
from workers.dispatcher.outbox import Outbox
from workers.dispatcher.space import (
    largest_group_bytes,
    refuse_small_logs,
    required_log_bytes,
    signal_bytes,
)
from workers.dispatcher.state import State

LIMIT_S = 30.0
DISPATCHER = "dispatcher@host:1:1"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_tokenizer_folder(tmp_path_factory.mktemp("model"))


async def lived(tokenizer: Path, server: MemoryServer | None = None, *, steps: int = 6) -> World:
    """A run that trained all its steps, and then wrote a checkpoint that every reader has passed."""
    run = a_run(steps=steps)
    world = a_world(run, server)
    await world.begin()
    async with playing(world), asyncio.timeout(LIMIT_S):
        await Start(tokenizer, run, two_sources()).dispatch(world.bus)
    await world.checkpoint()
    return world


async def a_janitor(bus: MemoryBus, *, keep_fraction: float = 0.5) -> tuple[Janitor, State]:
    state = State(max_attempts=3)
    followers = await catch_up(bus, state, Health("test"))
    await followers.close()
    outbox = Outbox(bus, state, writer_id=DISPATCHER)
    return Janitor(bus, state, outbox, keep_fraction=keep_fraction), state


async def floors(bus: MemoryBus) -> list[int]:
    return [e.floor for e in await read_all(bus, Log.LEDGER) if isinstance(e, LogPurged)]


async def test_the_floor_follows_each_checkpoint_though_nothing_is_purged_for_lack_of_need(
    tokenizer: Path,
):
    world = await lived(tokenizer)
    janitor, state = await a_janitor(world.bus)

    assert [await janitor.clean() for _ in range(3)] == [0, 0, 0]

    assert await floors(world.bus) == [state.request_seq]
    assert (await world.bus.state(Log.REQUESTS)).first == 1


async def test_in_a_full_store_all_below_the_floor_on_record_goes_before_anything_is_published(
    tokenizer: Path,
):
    server = MemoryServer()
    world = await lived(tokenizer, server)
    janitor, state = await a_janitor(world.bus)
    await janitor.clean()
    last = (await world.bus.state(Log.LEDGER)).last
    server.store_bytes = server.run("r").bytes - 1
    publishing = asyncio.create_task(world.bus.publish(an_advance(0)))
    await asyncio.sleep(0.2)
    waited = not publishing.done()

    async with asyncio.timeout(LIMIT_S):
        assert await janitor.clean() > 0
        await publishing

    assert waited
    assert (await world.bus.state(Log.REQUESTS)).messages == 1
    assert (await world.bus.state(Log.ANNOTATED)).messages == 0
    assert (await world.bus.state(Log.LEDGER)).last == last + 1
    assert (await a_janitor(world.bus))[1].request_seq == state.request_seq


async def test_a_full_store_without_a_floor_keeps_every_group(tokenizer: Path):
    server = MemoryServer()
    world = await lived(tokenizer, server)
    janitor, _ = await a_janitor(world.bus)
    server.store_bytes = server.run("r").bytes - 1

    async with asyncio.timeout(LIMIT_S):
        await janitor.clean()

    assert await floors(world.bus) == []
    assert [(await world.bus.state(of)).first for of in (Log.REQUESTS, Log.ANNOTATED)] == [1, 1]


class LateBus(MemoryBus):
    """Stores a floor, and says so too late."""

    late = True

    async def publish(
        self, event: Event, *, expect_subject: int | None = None, expect_log: int | None = None
    ) -> int:
        sequence = await super().publish(
            event, expect_subject=expect_subject, expect_log=expect_log
        )
        if isinstance(event, LogPurged) and self.late:
            await asyncio.sleep(60)
        return sequence


async def test_a_floor_whose_storing_was_not_confirmed_is_found_and_not_published_again(
    tokenizer: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "ANNOUNCE_LIMIT_S", 0.1)
    server = MemoryServer()
    world = await lived(tokenizer, server)
    bus = LateBus(server, "r")
    janitor, state = await a_janitor(bus, keep_fraction=0.0)

    firsts = []
    for late in (True, False):
        bus.late = late
        await janitor.clean()
        firsts.append((await bus.state(Log.ANNOTATED)).first)

    assert firsts[0] == 1
    assert firsts[1] > 1
    assert await floors(world.bus) == [state.floor]


async def test_a_dispatcher_that_was_replaced_cannot_lower_the_floor(tokenizer: Path):
    world = await lived(tokenizer)
    janitor, _ = await a_janitor(world.bus, keep_fraction=0.0)
    await world.bus.publish(LogPurged(writer_id="dispatcher@other:1:1", at_us=AT_US, floor=1))

    with pytest.raises(Replaced, match="dispatcher@other"):
        await janitor.clean()

    assert await floors(world.bus) == [1]
    assert (await world.bus.state(Log.REQUESTS)).first == 1


class StrangeBus(MemoryBus):
    """Holds a message that no stage of this program wrote: it has no headers."""

    async def cursor(self, log, after, subjects=(), *, headers_only=False):  # type: ignore[override]
        found = self._state.logs[log].messages
        for sequence, (packed, at_us) in list(found.items())[1:2]:
            found[sequence] = (type(packed)(packed.log, packed.subject, {}, packed.data), at_us)
        return await super().cursor(log, after, subjects, headers_only=headers_only)


async def test_a_strangers_message_goes_with_those_around_it(tokenizer: Path):
    server = MemoryServer()
    await lived(tokenizer, server)
    janitor, _ = await a_janitor(MemoryBus(server, "r"), keep_fraction=0.0)
    janitor._bus = StrangeBus(server, "r")

    assert await janitor.clean() > 0

    assert (await MemoryBus(server, "r").state(Log.ANNOTATED)).messages == 0


def an_advance(number: int) -> ReaderAdvanced:
    return ReaderAdvanced(
        writer_id=WRITER + "x" * 2000,
        at_us=AT_US,
        reader="stranger",
        log=Log.LEDGER,
        sequence=number,
    )


async def test_nothing_is_asked_for_while_the_ledger_is_nearly_full(
    tokenizer: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "INTERVAL_S", 0.05)
    monkeypatch.setattr(worker, "SHOW_FULL_S", 0.1)
    run = a_run(steps=3)
    world = a_world(run, MemoryServer(log_bytes=400_000))
    await world.begin()
    state = await world.bus.state(Log.LEDGER)
    while state.bytes <= 0.9 * state.limit_bytes:
        await world.bus.publish(an_advance(state.last))
        state = await world.bus.state(Log.LEDGER)
    start = Start(tokenizer, run, two_sources())

    async with playing(world), asyncio.timeout(LIMIT_S):
        task = asyncio.create_task(start.dispatch(world.bus))
        await until(lambda: "space in LEDGER" in str(start.health.status()["waits"]))
        await asyncio.sleep(0.3)
        asked = len(world.seen)
        await world.bus.purge(Log.LEDGER, state.last, keep_last_per_subject=True)
        await task

    assert asked == 0
    assert (await the_end(world.bus)).status == "finished"


async def test_while_a_log_is_nearly_full_groups_are_asked_for_one_at_a_time(
    tokenizer: Path, monkeypatch: pytest.MonkeyPatch
):
    async def see_a_full_log(janitor: Janitor) -> int:
        janitor.full = ("VERIFIED",)
        return 0

    monkeypatch.setattr(module, "INTERVAL_S", 0.01)
    monkeypatch.setattr(Janitor, "clean", see_a_full_log)
    monkeypatch.setattr(worker, "FULL_PAUSE_S", 0.3)
    world = a_world(a_run(steps=1_000), MemoryServer())
    await world.begin()
    start = Start(tokenizer, world.run, two_sources())

    async with playing(world), asyncio.timeout(LIMIT_S):
        task = asyncio.create_task(start.dispatch(world.bus))
        await until(lambda: bool(world.seen))
        await asyncio.sleep(0.5)
        asked = len(world.seen)
        await until(lambda: len(world.seen) > asked)
        await asyncio.sleep(2.0)
        more = len(world.seen) - asked
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    assert 1 < more < 9


async def test_a_run_that_stands_still_for_lack_of_space_waits_says_so_and_does_not_end(
    tokenizer: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "INTERVAL_S", 0.05)
    monkeypatch.setattr(worker, "IDLE_LIMIT_S", 0.5)
    monkeypatch.setattr(worker, "SHOW_FULL_S", 0.1)
    run, server = a_run(groups_per_step=4, pace=2), MemoryServer()
    world = a_world(run, server, script=lambda request: "silence")
    await world.begin()
    start = Start(tokenizer, run, two_sources())

    async with playing(world), asyncio.timeout(LIMIT_S):
        task = asyncio.create_task(start.dispatch(world.bus))
        await until(lambda: len(world.seen) == 12)
        server.store_bytes = server.run("r").bytes - 1
        await until(lambda: "space in the store" in str(start.health.status()["waits"]))
        await asyncio.sleep(1.0)  # twice the limit of a run in which nothing moves
        ended = task.done()
        server.store_bytes = None
        await task

    assert not ended
    assert (await the_end(world.bus)).status == "no_progress"


# --- at the start -----------------------------------------------------------------------------


def test_the_space_a_run_needs_is_a_checkpoint_interval_and_what_is_under_way():
    run = a_run(steps=100, groups_per_step=16, group_size=8, max_staleness=2)

    group = largest_group_bytes(run, prompt_tokens=1024, answer_tokens=512)
    needed = [
        required_log_bytes(
            run, prompt_tokens=1024, answer_tokens=512, checkpoint_every=c, snapshot_every=s
        )
        for c, s in ((20, 1), (5, 16), (500, 16))
    ]

    assert group == 3072 + 1024 * 16 + 8 * (1536 + 512 * 14)
    assert needed == [(steps + 2 + 2) * 16 * group for steps in (20, 16, 100)]


def test_signals_take_the_space_of_their_values():
    run = a_run(group_size=8)
    plain = largest_group_bytes(run, prompt_tokens=64, answer_tokens=100)

    def beside(*signals: str) -> int:
        told = signal_bytes(signals, answer_tokens=100, hidden_values=3 * 64)
        group = largest_group_bytes(
            run, prompt_tokens=64, answer_tokens=100, answer_signal_bytes=told
        )
        return group - plain

    assert beside() == 0
    assert beside("entropy") == beside("self_certainty") == 8 * 100 * 4
    assert beside("entropy", "self_certainty", "hidden") == 8 * (100 * 8 + 3 * 64 * 4)


@pytest.mark.parametrize(
    ("snapshot_every", "named"),
    [(1, "checkpoint_every 20"), (30, "30 between snapshots of a policy with a memory")],
)
def test_a_configuration_whose_logs_are_too_small_is_refused_with_the_arithmetic(
    snapshot_every: int, named: str
):
    run = a_run(steps=100, groups_per_step=16, group_size=8)
    sizes = {"prompt_tokens": 1024, "answer_tokens": 512, "checkpoint_every": 20}
    sizes["snapshot_every"] = snapshot_every
    needed = required_log_bytes(run, **sizes)

    refuse_small_logs(run, **sizes, log_bytes=needed)

    with pytest.raises(BadConfiguration, match=rf"nats\.log_bytes = .*{named} \+ pace 2"):
        refuse_small_logs(run, **sizes, log_bytes=needed - 1)
