"""A conversation over a stream of bytes, with somebody who may say anything or nothing."""

import asyncio
import struct

import pytest

from broker.frames import MAX_BYTES, CutOff, Frames


def heard(data: bytes, *, ends: bool = True) -> Frames:
    """A conversation in which the other side has said these bytes."""
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    if ends:
        reader.feed_eof()
    return Frames(reader, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is gone"),
        (struct.pack("<I", 9) + b"half", "is gone"),
        (struct.pack("<I", MAX_BYTES + 1), f"the limit is {MAX_BYTES}"),
        (struct.pack("<I", 1) + b"\xc1", "not a frame"),
        (struct.pack("<I", 1) + b"\x07", "not a frame: int"),
    ],
)
async def test_what_cannot_be_read_ends_the_conversation(data: bytes, why: str):
    with pytest.raises(CutOff, match=why):
        await heard(data).hear(5)


async def test_silence_ends_the_conversation_at_its_limit_and_is_called_so():
    with pytest.raises(CutOff, match=r"said nothing for 0\.05 s"):
        await heard(b"", ends=False).hear(0.05)
