"""What contract tests say again and again."""

import asyncio

import numpy as np

from broker.arrays import token_array
from broker.bus import Bus
from broker.topology import Log
from tests.builders import a_request


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
