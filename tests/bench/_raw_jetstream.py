"""What the pipeline's messages cost without us: published and read once each, by nats-py alone."""

import asyncio
import time

import nats
from nats.js.api import ConsumerConfig, StreamConfig

IN_FLIGHT = 64
FETCH = 64
LIMIT_S = 120.0


async def groups_per_s(url: str, sizes: tuple[int, ...], groups: int) -> float:
    """sizes: bytes of a group's message in each log. One client, each log written and read at a time."""
    client = await nats.connect(url)
    js = client.jetstream()
    try:
        for number in range(len(sizes)):
            await js.add_stream(StreamConfig(name=f"raw{number}", subjects=[f"raw{number}.>"]))
        begun = time.monotonic()
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
            for number, size in enumerate(sizes):
                tasks.create_task(_write(js, number, size, groups))
                tasks.create_task(_read(js, number, groups))
        seconds = time.monotonic() - begun
        for number in range(len(sizes)):
            await js.delete_stream(f"raw{number}")
        return groups / seconds
    finally:
        await client.close()


async def _write(js: nats.js.JetStreamContext, number: int, size: int, groups: int) -> None:
    body, free = b"x" * size, asyncio.Semaphore(IN_FLIGHT)

    async def one(group: int) -> None:
        async with free:
            await js.publish(f"raw{number}.{group:08d}", body, timeout=LIMIT_S)

    async with asyncio.TaskGroup() as tasks:
        for group in range(groups):
            tasks.create_task(one(group))


async def _read(js: nats.js.JetStreamContext, number: int, groups: int) -> None:
    config = ConsumerConfig(max_ack_pending=4096)
    reader = await js.pull_subscribe(f"raw{number}.>", durable=f"raw{number}", config=config)
    seen = 0
    while seen < groups:
        try:
            found = await reader.fetch(FETCH, timeout=1)
        except nats.errors.TimeoutError:
            continue  # the outer limit ends it
        for message in found:
            await message.ack()
        seen += len(found)
