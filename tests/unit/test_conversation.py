"""A conversation over a stream of bytes, with somebody who may say anything or nothing."""

import asyncio
import struct

import pytest

from broker.conversation import MAX_BYTES, Conversation, CutOff


def heard(data: bytes, *, ends: bool = True) -> Conversation:
    """A conversation in which the other side has said these bytes."""
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    if ends:
        reader.feed_eof()
    return Conversation(reader, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is gone"),
        (struct.pack(">I", 9) + b"half", "is gone"),
        (struct.pack(">I", MAX_BYTES + 1), f"the limit is {MAX_BYTES}"),
        (struct.pack(">I", 1) + b"\xc1", "not a frame"),
        (struct.pack(">I", 1) + b"\x07", "frame holds int; expected a table"),
    ],
)
async def test_what_cannot_be_read_ends_the_conversation(data: bytes, why: str):
    with pytest.raises(CutOff, match=why):
        await heard(data).hear(5)


async def test_silence_ends_the_conversation_at_its_limit_and_is_called_so():
    with pytest.raises(CutOff, match=r"said nothing for 0\.05 s"):
        await heard(b"", ends=False).hear(0.05)


async def test_a_frame_longer_than_is_expected_is_not_taken_in():
    with pytest.raises(CutOff, match="frame of 5000 bytes; the limit is 4096"):
        await heard(struct.pack(">I", 5000), ends=False).hear(5, most=4096)
