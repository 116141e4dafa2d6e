"""Frames between a verifier process and its graders: four bytes of length, then msgpack. No pickle."""

import asyncio
import socket
import struct

import msgpack

Frame = dict[str, object]
MAX_FRAME = 256 * 1024 * 1024
_LENGTH = struct.Struct(">I")


def pack(frame: Frame) -> bytes:
    """A frame's bytes. Lone surrogates, which a verifier's text may hold, become question marks."""
    body = msgpack.packb(frame, use_bin_type=True, unicode_errors="replace")
    assert body is not None  # packb returns None only for a Packer that does not autoreset
    return _LENGTH.pack(len(body)) + body


def read(connection: socket.socket) -> Frame | None:
    """The next frame, None when the other end is gone. Blocks: a grader has nothing else to do."""
    head = _exactly(connection, _LENGTH.size)
    body = _exactly(connection, _length(head)) if head else None
    return None if body is None else _unpack(body)


async def receive(reader: asyncio.StreamReader) -> Frame:
    """The next frame; IncompleteReadError or ConnectionError when the grader is gone."""
    head = await reader.readexactly(_LENGTH.size)
    return _unpack(await reader.readexactly(_length(head)))


def _length(head: bytes) -> int:
    (length,) = _LENGTH.unpack(head)
    if length > MAX_FRAME:
        raise ConnectionError(f"frame of {length} bytes; the limit is {MAX_FRAME}")
    return length


def _unpack(body: bytes) -> Frame:
    frame = msgpack.unpackb(body, raw=False, strict_map_key=False)
    if not isinstance(frame, dict):
        raise ConnectionError(f"frame holds {type(frame).__name__}; expected a table")
    return frame


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        got = connection.recv(min(size - len(parts), 1 << 20))
        if not got:
            return None
        parts += got
    return bytes(parts)
