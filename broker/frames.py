"""Frames between two processes: four bytes of length, then a table in msgpack. No pickle."""

import asyncio
import socket
import struct

import msgpack

Frame = dict[str, object]
MAX_FRAME = 256 * 1024 * 1024
_LENGTH = struct.Struct(">I")


class BadFrame(ConnectionError):
    """The other end says what cannot be read; nothing after it can be either."""


def pack(frame: Frame) -> bytes:
    """A frame's bytes. Lone surrogates, which a verifier's text may hold, become question marks."""
    body = msgpack.packb(frame, use_bin_type=True, unicode_errors="replace")
    assert body is not None  # packb returns None only for a Packer that does not autoreset
    return _LENGTH.pack(len(body)) + body


def read(connection: socket.socket) -> Frame | None:
    """The next frame, None when the other end is gone; BadFrame. Blocks: a grader has nothing else to do."""
    head = _exactly(connection, _LENGTH.size)
    body = _exactly(connection, _length(head, MAX_FRAME)) if head else None
    return None if body is None else _unpack(body)


async def receive(reader: asyncio.StreamReader, *, most: int = MAX_FRAME) -> Frame:
    """The next frame, of `most` bytes; BadFrame, IncompleteReadError or OSError when there is none."""
    head = await reader.readexactly(_LENGTH.size)
    return _unpack(await reader.readexactly(_length(head, most)))


def _length(head: bytes, most: int) -> int:
    (length,) = _LENGTH.unpack(head)
    if length > most:
        raise BadFrame(f"frame of {length} bytes; the limit is {most}")
    return length


def _unpack(body: bytes) -> Frame:
    try:
        frame = msgpack.unpackb(body, raw=False, strict_map_key=False)
    except Exception as error:  # msgpack raises a dozen kinds; all mean bad bytes
        raise BadFrame(f"not a frame: {type(error).__name__}: {error}") from error
    if not isinstance(frame, dict):
        raise BadFrame(f"frame holds {type(frame).__name__}; expected a table")
    return frame


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        got = connection.recv(min(size - len(parts), 1 << 20))
        if not got:
            return None
        parts += got
    return bytes(parts)
