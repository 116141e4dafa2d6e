"""This process's end of a durable reader: messages come to one worker each, until acknowledged."""

import time
from dataclasses import dataclass

import orjson

from broker.bus import Delivery, Stored
from broker.errors import TooLong
from broker.inbox import Inbox, Resolve, as_stored, is_delivery
from broker.topology import H_OBJECT, Log
from broker.wire import Message, Unanswered, Wire, delivery_position

AWAY_PAUSE_S = 0.2
"""Before asking again a server that is away."""
PULL_EXPIRES_S = 2.0
"""A pull stays open so long; one that a connection took along when it broke brings nothing until then."""
LATE_S = 1.0
"""For the server to say that a pull has expired; after that it is as good as expired."""


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
    """Pulls from a durable consumer; what arrives after a cancelled fetch is kept for the next.

    A pull stays open until it has brought as many messages as its caller could take: a message that
    trickles in need not be asked for. No more is asked for than the newest fetch allows, unless the server,
    or this process, was held up for longer than LATE_S.
    """

    def __init__(self, wire: Wire, log: Log, stream: str, name: str, resolve: Resolve) -> None:
        self._wire = wire
        self._log = log
        self._consumer = f"{stream}.{name}"
        self._inbox = Inbox()
        self._resolve = resolve
        self._asked = 0
        """Messages that the open pull may still bring."""
        self._over_at = 0.0
        """When the open pull has expired for certain."""
        self._ask_at = 0.0
        """No pull before: the server was away, or refused one."""

    async def fetch(self, limit: int, wait_s: float) -> list[Delivery]:
        """Takes what is there at once; only if there is nothing, waits for the first."""
        deadline = time.monotonic() + wait_s
        if not self._inbox.is_open:
            await self._inbox.open(self._wire)
        while True:
            found = await self._taken(limit)
            left_s = deadline - time.monotonic()
            if found or left_s <= 0:
                return found
            await self._inbox.wait(min(left_s, await self._keep_open(limit)))

    async def _keep_open(self, limit: int) -> float:
        """Ask for messages unless a pull is open; after how many seconds to look again."""
        now = time.monotonic()
        if self._asked > 0 and now < self._over_at:
            return self._over_at - now
        if now < self._ask_at:
            return self._ask_at - now
        self._asked, self._over_at = limit, now + PULL_EXPIRES_S + LATE_S
        question = {"batch": limit, "expires": round(PULL_EXPIRES_S * 1_000_000_000)}
        try:
            await self._inbox.pull(self._wire, self._consumer, question)
        except Unanswered:
            self._pull_is_over(AWAY_PAUSE_S)
            return AWAY_PAUSE_S
        return self._over_at - now

    def _pull_is_over(self, pause_s: float) -> None:
        self._asked, self._ask_at = 0, time.monotonic() + pause_s

    async def _taken(self, limit: int) -> list[Delivery]:
        """What has arrived, `limit` messages at most."""
        arrived: list[Message] = []
        while len(arrived) < limit and (message := self._inbox.take()) is not None:
            if is_delivery(message):
                self._asked -= 1
                arrived.append(message)
                continue
            # 404, 408: it brought what it could. 503, 409: the server will come back.
            expired = (message.headers or {}).get("Status") in ("404", "408")
            self._pull_is_over(0.0 if expired else AWAY_PAUSE_S)
        return await self._deliver(arrived)

    async def _deliver(self, arrived: list[Message]) -> list[Delivery]:
        found: list[Delivery] = []
        for message in arrived:
            delivery = self._delivery(message)
            if H_OBJECT in delivery.stored.headers:
                try:
                    delivery.stored = await self._resolve(delivery.stored)
                except TooLong:
                    await delivery.retry(1.0)
                    continue
            found.append(delivery)
        return found

    def _delivery(self, message: Message) -> JetDelivery:
        deliveries, *_ = delivery_position(message.reply)
        stored = as_stored(self._log, message)
        return JetDelivery(stored, deliveries, self._wire, message.reply)

    async def close(self) -> None:
        """Hands back what arrived and was not fetched."""
        await self._inbox.drain()
        while (message := self._inbox.take()) is not None:
            if is_delivery(message):
                await self._delivery(message).retry(0.0)
        self._pull_is_over(0.0)
