"""What the server says to a publication, and asking until it says something final."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import orjson

from broker.errors import SluiceError, Unreachable
from broker.telemetry import publish_waits_total
from broker.wire import NOT_FOUND_STREAM, Unanswered, Wire, api_or_none

ACK_TIMEOUT_S = 5.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0
CHECKED_EVERY = 12
"""Unanswered attempts between two looks at whether the stream still exists."""

REFUSED = {10071, 10164}
"""Wrong last sequence: of the subject, of the log, or within a batch."""
FULL = {10077, 10047, 10028, 10002, 10023}
"""Log, account or server out of space or resources."""
BATCH_LOST = {10176}
"""Part of the batch did not arrive, or came too late."""


@dataclass(frozen=True)
class Answer:
    """What the server said to a publication: `sequence`, or why not."""

    sequence: int = 0
    code: int = 0
    err_code: int = 0
    text: str = ""

    @property
    def stored(self) -> bool:
        return self.err_code == 0

    @property
    def refused(self) -> bool:
        return self.err_code in REFUSED

    @property
    def full(self) -> bool:
        return self.err_code in FULL

    @property
    def passes(self) -> bool:
        """Another attempt may succeed."""
        return self.full or self.err_code in BATCH_LOST or self.code in (429, 503)


def parse_answer(data: bytes) -> Answer:
    found = orjson.loads(data)
    error = found.get("error")
    if error is None:
        return Answer(sequence=found["seq"])
    return Answer(
        code=error.get("code", 0),
        err_code=error.get("err_code", 0) or -1,
        text=str(error.get("description")),
    )


async def send_one(wire: Wire, subject: str, data: bytes, headers: Mapping[str, str]) -> Answer:
    reply = await wire.request(subject, data, headers, ACK_TIMEOUT_S)
    return parse_answer(reply.data)


async def until_answered(
    wire: Wire, stream: str, label: str, send: Callable[[], Awaitable[Answer]]
) -> Answer:
    """Send the same bytes until they are stored or refused; waits show in the status under `label`.

    Unreachable when the stream is gone for good, SluiceError for any other final error.
    """
    pause_s = FIRST_PAUSE_S
    for attempt in itertools.count(1):
        try:
            answer = await send()
        except Unanswered as problem:
            if attempt % CHECKED_EVERY == 0:
                await _check_exists(wire, stream)
            what = f"the broker to store in {label} ({problem})"
        else:
            if answer.stored or answer.refused:
                return answer
            if not answer.passes:
                raise SluiceError(f"{label}: not stored: {answer.text} ({answer.err_code})")
            if answer.full:
                publish_waits_total.labels(label).inc()
            what = f"space in {label} ({answer.text})"
        with wire.waiting_for(what):
            await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
    raise AssertionError("count() does not end")


async def _check_exists(wire: Wire, stream: str) -> None:
    if await api_or_none(wire, f"STREAM.INFO.{stream}", None, NOT_FOUND_STREAM) is None:
        raise Unreachable(f"stream {stream} does not exist; the run was deleted")
