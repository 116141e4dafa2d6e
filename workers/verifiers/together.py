"""Waiting for many things at once: when one fails, the others are ended before anybody hears of it."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results, in order. Raises the first failure as it was, not in a group."""
    try:
        async with asyncio.TaskGroup() as tasks:
            started = [tasks.create_task(one) for one in work]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    return [task.result() for task in started]
