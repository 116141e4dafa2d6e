"""What the JetStream bus needs of a connection, and the JetStream API spoken over it as JSON.

The connection itself (nats-py) is in `broker.jetstream`; everything here is free of it.
"""

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Protocol

import orjson

from broker.bus import Stored
from broker.errors import SluiceError, Unreachable
from broker.topology import Log

API_TIMEOUT_S = 5.0
REACH_LIMIT_S = 120.0
"""How long a question to the server is repeated while it is away."""

NOT_FOUND_MESSAGE, NOT_FOUND_STREAM, NOT_FOUND_CONSUMER = 10037, 10059, 10014


class Unanswered(SluiceError):
    """No answer: the server is away, still starting, or too slow. Whether it acted is unknown."""


class ApiError(SluiceError):
    """The server answered with an error."""

    def __init__(self, asked: str, error: Mapping[str, Any]) -> None:
        super().__init__(f"{asked}: {error.get('description')} ({error.get('err_code')})")
        self.code = int(error.get("code", 0))
        self.err_code = int(error.get("err_code", 0))


class Message(Protocol):
    """A message as it arrives."""

    @property
    def subject(self) -> str: ...
    @property
    def reply(self) -> str: ...
    @property
    def data(self) -> bytes: ...
    @property
    def headers(self) -> Mapping[str, str] | None: ...


class Subscription(Protocol):
    """Survives reconnects; ends with `close`."""

    async def close(self) -> None: ...

    async def drain(self) -> None:
        """Close after what the server has sent so far; within a second when it is away."""
        ...


class Wire(Protocol):
    """One connection to the broker that mends itself."""

    @property
    def max_payload(self) -> int: ...

    async def request(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None, timeout_s: float
    ) -> Message:
        """The answer; Unanswered when there is none in time."""
        ...

    async def send(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None = None, reply: str = ""
    ) -> None:
        """Without an answer; Unanswered when not connected."""
        ...

    async def subscribe(
        self, subject: str, on_message: Callable[[Message], Awaitable[None]]
    ) -> Subscription: ...

    def new_inbox(self) -> str: ...

    def waiting_for(self, what: str) -> AbstractContextManager[None]:
        """Shows in the status, for as long as it lasts, what this process waits for."""
        ...

    async def close(self) -> None: ...


async def api(wire: Wire, name: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
    """One question to JetStream, repeated while the server is away; ApiError or Unreachable."""
    data = orjson.dumps(body) if body is not None else b""
    deadline = time.monotonic() + REACH_LIMIT_S
    pause_s = 0.05
    while True:
        try:
            reply = await wire.request(f"$JS.API.{name}", data, None, API_TIMEOUT_S)
            found = orjson.loads(reply.data)
            if "error" not in found:
                return found
            error = ApiError(name, found["error"])
            if error.code != 503:  # 503: starting, or electing a leader
                raise error
            problem: SluiceError = error
        except Unanswered as unanswered:
            problem = unanswered
        if time.monotonic() > deadline:
            raise Unreachable(f"nats {name}: no answer for {REACH_LIMIT_S:.0f} s ({problem})")
        with wire.waiting_for("the broker"):
            await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, 1.0)


async def api_or_none(
    wire: Wire, name: str, body: Mapping[str, object] | None, absent: int
) -> dict[str, Any] | None:
    """Like `api`; None for the one error that means: there is none."""
    try:
        return await api(wire, name, body)
    except ApiError as error:
        if error.err_code == absent:
            return None
        raise


def own_headers(found: Mapping[str, str] | None) -> dict[str, str]:
    """Ours; what the server and the protocol add is left out."""
    return {key: value for key, value in (found or {}).items() if key.startswith("Sluice-")}


def _parse_headers(encoded: str | None) -> dict[str, str]:
    lines = base64.b64decode(encoded or "").decode("utf-8", "replace").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if ":" in line)
    return {key: value.strip() for key, _, value in pairs}


async def read_message(
    wire: Wire, log: Log, stream: str, question: Mapping[str, object]
) -> Stored | None:
    """One message from the stream's leader: by `seq`, `last_by_subj`, or `seq` with `next_by_subj`."""
    found = await api_or_none(wire, f"STREAM.MSG.GET.{stream}", question, NOT_FOUND_MESSAGE)
    if found is None:
        return None
    message = found["message"]
    stored_at = datetime.fromisoformat(message["time"])
    return Stored(
        log=log,
        sequence=message["seq"],
        subject=message["subject"],
        headers=own_headers(_parse_headers(message.get("hdrs"))),
        data=base64.b64decode(message.get("data", "")),
        stored_at_us=round(stored_at.timestamp() * 1_000_000),
    )


async def read_direct(
    wire: Wire, log: Log, stream: str, question: Mapping[str, object]
) -> Stored | None:
    """The same of a stream without replicas, whose only server is its leader, for 100 us less of its time."""
    try:
        reply = await wire.request(
            f"$JS.API.DIRECT.GET.{stream}", orjson.dumps(question), None, API_TIMEOUT_S
        )
    except Unanswered:
        return await read_message(wire, log, stream, question)  # which knows how long to wait
    found = reply.headers or {}
    if found.get("Status") == "404":
        return None
    if "Nats-Sequence" not in found:
        return await read_message(wire, log, stream, question)  # which tells what is wrong
    stored_at = datetime.fromisoformat(found["Nats-Time-Stamp"])
    return Stored(
        log=log,
        sequence=int(found["Nats-Sequence"]),
        subject=found["Nats-Subject"],
        headers=own_headers(found),
        data=reply.data,
        stored_at_us=round(stored_at.timestamp() * 1_000_000),
    )


def delivery_position(reply: str) -> tuple[int, int, int, int]:
    """(deliveries, stream sequence, consumer sequence, stored at in us) from an acknowledgement subject.

    `$JS.ACK.<stream>.<consumer>.<deliveries>.<stream seq>.<consumer seq>.<ns>.<pending>`, or the
    longer form with domain and account after ACK.
    """
    tokens = reply.split(".")
    start = 4 if len(tokens) == 9 else 6
    deliveries, sequence, consumer_sequence, stored_ns = (int(t) for t in tokens[start : start + 4])
    return deliveries, sequence, consumer_sequence, stored_ns // 1000
