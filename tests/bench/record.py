"""Rows a second of the recorder, from messages to Postgres, against a plain COPY of the same rows.

The peer gets the rows ready made, as text in COPY's own form, into tables with the same constraints
and indexes. What is ours on top: reading and decoding messages, making rows, merging, counting groups,
ending trained groups, and the cursors.
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
from store import recorder
from store.database import connect
from store.merge import ORDER
from store.settings import StoreSettings
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

GROUPS, SIZE, TOKENS = 1_000, 8, 512
GROUPS_PER_STEP = 20
ROUNDS = 3
LIMIT_S = 300.0


def measure() -> list[Result]:
    server = filled()
    rates: list[tuple[float, float]] = []
    with postgres() as url:
        for number in range(ROUNDS):
            database = fresh_database(url, f"ours_{number}")
            seconds = asyncio.run(record(server, database))
            rows, copied_s = copy_again(database, fresh_database(url, f"peer_{number}"))
            rates.append((rows / seconds, rows / copied_s))
    ours, peer = (statistics.median(column) for column in zip(*rates, strict=True))
    what = f"groups of {SIZE} x {TOKENS} tokens"
    return [
        Result("record", f"rows recorded, {what}", "rows/s", ours, peer, rounds=ROUNDS),
    ]


def filled() -> MemoryServer:
    """The logs of a run whose groups were all trained."""
    server = MemoryServer(log_bytes=4 << 30)
    asyncio.run(_fill(MemoryBus(server, RUN)))
    return server


async def _fill(bus: MemoryBus) -> None:
    await bus.publish(started())
    for step in range(1, GROUPS // GROUPS_PER_STEP + 1):
        first = (step - 1) * GROUPS_PER_STEP + 1
        numbers = range(first, first + GROUPS_PER_STEP)
        for event in _groups(numbers, window=step):
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


def _groups(numbers: range, *, window: int) -> list[Event]:
    found: list[Event] = []
    generations = tuple(
        a_generation(
            index,
            token_ids=token_array(np.arange(TOKENS) % 997),
            logprobs=logprob_array(np.linspace(-3, -0.1, TOKENS)),
            spans=(VersionSpan(version=0, first=0, end=TOKENS),),
            text="word " * TOKENS,
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


async def record(server: MemoryServer, url: str) -> float:
    """Seconds of a recorder from its start until the run is closed."""
    started_at = time.monotonic()
    async with asyncio.timeout(LIMIT_S):
        await recorder.run(
            MemoryBus(server, RUN),
            url=url,
            settings=StoreSettings(),
            health=Health("recorder"),
            stop=asyncio.Event(),
        )
    return time.monotonic() - started_at


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
