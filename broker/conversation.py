"""Small messages between two processes over a stream of bytes: a length, then msgpack.

For what must not go through the logs: a conversation that is worth nothing once it is cut off.
"""

import asyncio
import struct
from contextlib import suppress
from typing import Any

import msgpack

from broker.errors import SluiceError

MAX_BYTES = 64 * 1024 * 1024
_LENGTH = struct.Struct("<I")


class CutOff(SluiceError):
    """The other side is gone, late, or says what cannot be read."""


class Frames:
    """One conversation."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def say(self, frame: dict[str, Any]) -> None:
        """Raises CutOff."""
        packed = msgpack.packb(frame, use_bin_type=True)
        assert packed is not None  # packb returns None only for a Packer that does not autoreset
        try:
            self._writer.write(_LENGTH.pack(len(packed)) + packed)
            await self._writer.drain()
        except OSError as error:
            raise CutOff(f"the other side is gone: {error}") from error

    async def hear(self, limit_s: float) -> dict[str, Any]:
        """Raises CutOff, after `limit_s` at the latest."""
        try:
            async with asyncio.timeout(limit_s):
                (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
                if length > MAX_BYTES:
                    raise CutOff(f"a frame of {length} bytes; the limit is {MAX_BYTES}")
                data = await self._reader.readexactly(length)
        except TimeoutError:
            raise CutOff(f"the other side said nothing for {limit_s:g} s") from None
        except (OSError, asyncio.IncompleteReadError) as error:
            raise CutOff(f"the other side is gone: {error}") from error
        try:
            frame = msgpack.unpackb(data, raw=False)
        except Exception as error:  # msgpack raises a dozen kinds; all mean bad bytes
            raise CutOff(f"not a frame: {type(error).__name__}: {error}") from error
        if not isinstance(frame, dict):
            raise CutOff(f"not a frame: {type(frame).__name__}")
        return frame

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):  # it may have been gone before
            await self._writer.wait_closed()
