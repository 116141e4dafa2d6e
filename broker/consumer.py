"""This process's end of a durable reader: messages come to one worker each, until acknowledged."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from broker.bus import Delivery, Stored
from broker.errors import TooLong
from broker.inbox import Inbox, Resolve, as_stored, is_delivery
from broker.topology import H_OBJECT, Log
from broker.wire import Message, Unanswered, Wire, delivery_position

AWAY_PAUSE_S = 0.2
"""Before asking again a server that is away."""
STRAGGLER_S = 0.005
"""Messages of one pull come in one go: after this long without one, there are no more."""


@dataclass
class JetDelivery:
    """A message of a durable consumer, to be acknowledged by core messages to its reply subject.

    An acknowledgement that is lost with the connection costs a redelivery, which is harmless:
    the second output is refused as stored already.
    """

    stored: Stored
    deliveries: int
    _wire: Wire
    _reply: str

    async def ack(self) -> None:
        await self._answer(b"+ACK")

    async def retry(self, delay_s: float) -> None:
        delay = orjson.dumps({"delay": round(max(delay_s, 0.0) * 1_000_000_000)})
        await self._answer(b"-NAK " + delay if delay_s > 0 else b"-NAK")

    async def progress(self) -> None:
        await self._answer(b"+WPI")

    async def _answer(self, word: bytes) -> None:
        try:
            await self._wire.send(self._reply, word)
        except Unanswered:
            return


class JetConsumer:
    """Pulls from a durable consumer; what arrives after a cancelled fetch is kept for the next."""

    def __init__(self, wire: Wire, log: Log, stream: str, name: str, resolve: Resolve) -> None:
        self._wire = wire
        self._log = log
        self._consumer = f"{stream}.{name}"
        self._inbox = Inbox()
        self._resolve = resolve

    async def fetch(self, limit: int, wait_s: float) -> list[Delivery]:
        """Takes what is there at once; only if there is nothing, waits for one message."""
        deadline = time.monotonic() + wait_s
        if not self._inbox.is_open:
            await self._inbox.open(self._wire)
        for question in ({"batch": limit, "no_wait": True}, {"batch": 1}):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            found = await self._pull(question, limit, left_s)
            if found:
                return found
        return []

    async def _pull(
        self, question: Mapping[str, object], limit: int, left_s: float
    ) -> list[Delivery]:
        found = await self._taken(limit)
        if found:
            return found
        expires_s = max(left_s - 0.05, 0.01)
        if "no_wait" not in question:
            question = {**question, "expires": round(expires_s * 1_000_000_000)}
        try:
            await self._inbox.pull(self._wire, self._consumer, question)
        except Unanswered:
            await asyncio.sleep(min(left_s, AWAY_PAUSE_S))
            return []
        return await self._collect(limit, left_s)

    async def _collect(self, limit: int, left_s: float) -> list[Delivery]:
        """Until the pull says it is over, `limit` are there, or time is up."""
        deadline = time.monotonic() + left_s
        arrived: list[Message] = []
        while len(arrived) < limit:
            message = self._inbox.take()
            if message is None:
                wait_s = deadline - time.monotonic() if not arrived else STRAGGLER_S
                if wait_s <= 0:
                    break
                await self._inbox.wait(wait_s)
                if not self._inbox.messages:
                    break
                continue
            if not is_delivery(message):
                if arrived or (message.headers or {}).get("Status") in ("404", "408"):
                    break
                await asyncio.sleep(min(left_s, AWAY_PAUSE_S))  # 503, 409: it will come back
                break
            arrived.append(message)
        return await self._deliver(arrived)

    async def _taken(self, limit: int) -> list[Delivery]:
        """What earlier pulls brought."""
        arrived: list[Message] = []
        while len(arrived) < limit and (message := self._inbox.take()) is not None:
            if is_delivery(message):
                arrived.append(message)
        return await self._deliver(arrived)

    async def _deliver(self, arrived: list[Message]) -> list[Delivery]:
        found: list[Delivery] = []
        for message in arrived:
            deliveries, *_ = delivery_position(message.reply)
            stored = as_stored(self._log, message)
            delivery = JetDelivery(stored, deliveries, self._wire, message.reply)
            if H_OBJECT in stored.headers:
                try:
                    delivery.stored = await self._resolve(stored)
                except TooLong:
                    await delivery.retry(1.0)
                    continue
            found.append(delivery)
        return found

    async def close(self) -> None:
        """Hands back what arrived and was not fetched."""
        for delivery in await self._taken(len(self._inbox.messages)):
            await delivery.retry(0.0)
        await self._inbox.close()
