"""What the recorder writes a second, from messages to Postgres, against a plain COPY of the rows; its lag.

The peer gets the rows ready made, as text in COPY's own form, into tables with the same constraints
and indexes. What is ours on top: reading and decoding messages, making rows, merging, counting groups,
ending trained groups, and the cursors. Lag: from when a message is in its log until its rows are
committed, while groups come at the pace that is asked for.
"""

import asyncio
import statistics
import time

import numpy as np

from broker.arrays import logprob_array, token_array
from broker.memory import MemoryBus, MemoryServer
from broker.messages import (
    Event,
    GroupRequested,
    PlannedGroup,
    RunEnded,
    StepCommitted,
    StepPlanned,
    VersionSpan,
)
from broker.telemetry import Health
from broker.topology import Log
from ops.worker import tame_collector
from store import recorder
from store.database import connect
from store.merge import ORDER
from store.settings import StoreSettings
from tests.bench._paced import LagSeen, PacedBus
from tests.bench.result import Result
from tests.bench.servers import fresh_database, postgres
from tests.builders import (
    a_generated,
    a_generation,
    a_request,
    a_sample,
    a_verdict,
    a_verified,
    an_annotated,
    an_annotation,
)
from tests.store_events import COMMON, RUN, started

SIZE = 8
LONG, SHORT = (512, 1_000), (64, 8_000)
"""Tokens an answer, and how many groups: enough that the last batch's wait for more counts little."""
GROUPS_PER_STEP = 20
ROUNDS = 3
LIMIT_S = 300.0
PACE = 10_000
"""Generations a second that have to be kept up with."""
LAG_LIMIT_S = 2.0


def measure() -> list[Result]:
    tame_collector()  # as a worker does
    with postgres() as url:
        rows, peer_rows, _ = rates(url, *LONG)
        short_rows, short_peer_rows, generations = rates(url, *SHORT)
        behind_s = asyncio.run(lags(filled(*SHORT), fresh_database(url, "paced")))
    what, short = (f"groups of {SIZE} x {tokens} tokens" for tokens, _ in (LONG, SHORT))
    lag = f"from a log to Postgres at {PACE:,} generations/s"
    return [
        Result("record", f"rows recorded, {what}", "rows/s", rows, peer_rows, rounds=ROUNDS),
        Result("record", f"rows recorded, {short}", "rows/s", short_rows, short_peer_rows, rounds=ROUNDS),
        Result("record", f"recorded, {short}", "generations/s", generations, limit=PACE, rounds=ROUNDS),
        Result("record", f"{lag}, median", "s", statistics.median(behind_s), more_is_better=False),
        Result("record", f"{lag}, longest", "s", max(behind_s), limit=LAG_LIMIT_S, more_is_better=False),
    ]  # fmt: skip


def rates(server_url: str, tokens: int, groups: int) -> tuple[float, float, float]:
    """Medians a second: rows of ours, rows of the peer, generations of ours."""
    server = filled(tokens, groups)
    found: list[tuple[float, float, float]] = []
    for number in range(ROUNDS):
        database = fresh_database(server_url, f"ours_{tokens}_{number}")
        seconds = asyncio.run(record(MemoryBus(server, RUN), database, Health("recorder")))
        rows, copied_s = copy_again(database, fresh_database(server_url, f"peer_{tokens}_{number}"))
        found.append((rows / seconds, rows / copied_s, groups * SIZE / seconds))
    ours, peer, generations = (statistics.median(column) for column in zip(*found, strict=True))
    return ours, peer, generations


def filled(tokens: int, groups: int) -> MemoryServer:
    """The logs of a run whose groups were all trained."""
    server = MemoryServer(log_bytes=4 << 30)
    asyncio.run(_fill(MemoryBus(server, RUN), tokens, groups))
    return server


async def _fill(bus: MemoryBus, tokens: int, groups: int) -> None:
    await bus.publish(started())
    for step in range(1, groups // GROUPS_PER_STEP + 1):
        first = (step - 1) * GROUPS_PER_STEP + 1
        numbers = range(first, first + GROUPS_PER_STEP)
        for event in _groups(numbers, tokens, window=step):
            await bus.publish(event)
        planned = [
            PlannedGroup(group_id=f"{n:08d}-0-0", domain="math", stream_seq=n, staleness=0)
            for n in numbers
        ]
        await bus.publish(
            StepPlanned(
                **COMMON, step=step, version=step - 1, groups=tuple(planned), dropped=(), cursor=0
            )
        )
        metrics = {"groups": GROUPS_PER_STEP, "generations": GROUPS_PER_STEP * SIZE}
        await bus.publish(
            StepCommitted(
                **COMMON, step=step, status="trained", version=step, digest=f"d{step}",
                metrics=metrics,
            )
        )  # fmt: skip
    lasts = {str(log): (await bus.state(log)).last for log in Log}
    await bus.publish(RunEnded(**COMMON, reason="", status="finished", last_sequences=lasts))


def _groups(numbers: range, tokens: int, *, window: int) -> list[Event]:
    found: list[Event] = []
    generations = tuple(
        a_generation(
            index,
            token_ids=token_array(np.arange(tokens) % 997),
            logprobs=logprob_array(np.linspace(-3, -0.1, tokens)),
            spans=(VersionSpan(version=0, first=0, end=tokens),),
            text="word " * tokens,
        )
        for index in range(SIZE)
    )
    for place, number in enumerate(numbers):
        request: GroupRequested = a_request(
            f"{number:08d}-0-0", size=SIZE, sample=a_sample(f"math:1:{number}")
        )
        shared = {"generations": generations}
        verdicts = tuple(a_verdict(index, index % 2) for index in range(SIZE))
        found += [
            request,
            a_generated(request, **shared),
            a_verified(request, verdicts=verdicts, **shared),
            an_annotated(
                request,
                annotations=tuple(an_annotation(index) for index in range(SIZE)),
                window=window, window_size=len(numbers), window_index=place,
                verified_seq=number, cut=numbers[-1], **shared,
            ),
        ]  # fmt: skip
    return found


async def record(bus: MemoryBus, url: str, health: Health) -> float:
    """Seconds of a recorder from its start until the run is closed."""
    started_at = time.monotonic()
    async with asyncio.timeout(LIMIT_S):
        await recorder.run(
            bus, url=url, settings=StoreSettings(), health=health, stop=asyncio.Event()
        )
    return time.monotonic() - started_at


async def lags(server: MemoryServer, url: str) -> list[float]:
    """Seconds from log to commit of every message, in a run whose groups come at PACE."""
    bus = PacedBus(server, RUN, arrival_s)
    health = LagSeen(bus)
    await record(bus, url, health)
    return health.lags


def arrival_s(log: Log, sequence: int) -> float:
    # The ledger has the run's start, then a plan and a commit a step.
    group = sequence if log is not Log.LEDGER else sequence // 2 * GROUPS_PER_STEP
    return group * SIZE / PACE


def copy_again(database: str, into: str) -> tuple[int, float]:
    """How many rows the run's tables hold, and the seconds of copying them into empty ones."""
    rows, seconds = 0, 0.0
    with connect(database) as source, connect(into) as target:
        for table in ORDER:
            with source.cursor().copy(f"COPY {table} TO STDOUT".encode()) as out:
                blocks = [bytes(block) for block in out]
            target.execute(f"CREATE TABLE plain_{table} (LIKE {table} INCLUDING ALL)".encode())
            target.commit()
            begun = time.monotonic()
            cursor = target.cursor()
            with cursor.copy(f"COPY plain_{table} FROM STDIN".encode()) as copy:
                for start in range(0, len(blocks), 1000):
                    copy.write(b"".join(blocks[start : start + 1000]))
            target.commit()
            seconds += time.monotonic() - begun
            rows += cursor.rowcount
    return rows, seconds
