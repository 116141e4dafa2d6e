"""A conversation of two processes in frames, each answer awaited within a limit.

For what must not go through the logs: it is worth nothing once it is cut off.
"""

import asyncio
from contextlib import suppress
from typing import Any

from broker.errors import SluiceError
from broker.frames import BadFrame, pack, receive

MAX_BYTES = 64 * 1024 * 1024


class CutOff(SluiceError):
    """The other side is gone, late, or says what cannot be read."""


class Conversation:
    """One end of it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def say(self, frame: dict[str, Any]) -> None:
        """Raises CutOff."""
        try:
            self._writer.write(pack(frame))
            await self._writer.drain()
        except OSError as error:
            raise CutOff(f"the other side is gone: {error}") from error

    async def hear(self, limit_s: float, *, most: int = MAX_BYTES) -> dict[str, Any]:
        """The next frame, of `most` bytes. Raises CutOff, after `limit_s` at the latest."""
        try:
            async with asyncio.timeout(limit_s):
                return await receive(self._reader, most=most)
        except BadFrame as error:
            raise CutOff(str(error)) from error
        except TimeoutError:
            raise CutOff(f"the other side said nothing for {limit_s:g} s") from None
        except (OSError, asyncio.IncompleteReadError) as error:
            raise CutOff(f"the other side is gone: {error}") from error

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):  # it may have been gone before
            await self._writer.wait_closed()
