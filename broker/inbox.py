"""Where messages of one reader arrive, and how it asks for more."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping

import orjson

from broker.bus import Stored
from broker.topology import Log
from broker.wire import Message, Subscription, Wire, delivery_position, own_headers

Resolve = Callable[[Stored], Awaitable[Stored]]
"""Fetches the body of a claim check; TooLong when it takes too long."""


def as_stored(log: Log, message: Message) -> Stored:
    """A message that a consumer delivered."""
    _, sequence, _, stored_at_us = delivery_position(message.reply)
    return Stored(
        log=log,
        sequence=sequence,
        subject=message.subject,
        headers=own_headers(message.headers),
        data=message.data,
        stored_at_us=stored_at_us,
    )


def is_delivery(message: Message) -> bool:
    """A message of the log; otherwise it is the server's word about a pull."""
    return message.reply.startswith("$JS.ACK.")


class Inbox:
    """Messages that arrived for one reader, and a way to wait for the next."""

    def __init__(self) -> None:
        self.messages: deque[Message] = deque()
        self.bytes = 0
        self._arrived = asyncio.Event()
        self._subject = ""
        self._pulls = 0
        self._subscription: Subscription | None = None

    @property
    def is_open(self) -> bool:
        return self._subscription is not None

    async def open(self, wire: Wire) -> None:
        """A fresh subject: what still comes for the old one is dropped."""
        await self.close()
        self.messages.clear()
        self.bytes = 0
        subject = self._subject = wire.new_inbox()

        async def arrive(message: Message) -> None:
            # The end of an earlier pull says nothing about the present one.
            stale = not is_delivery(message) and message.subject != f"{subject}.{self._pulls}"
            if self._subject == subject and not stale:
                self.messages.append(message)
                self.bytes += len(message.data)
                self._arrived.set()

        self._subscription = await wire.subscribe(f"{subject}.*", arrive)

    async def pull(self, wire: Wire, consumer: str, question: Mapping[str, object]) -> None:
        """Ask a consumer, `<stream>.<name>`, for messages."""
        self._pulls += 1
        await wire.send(
            f"$JS.API.CONSUMER.MSG.NEXT.{consumer}",
            orjson.dumps(question),
            reply=f"{self._subject}.{self._pulls}",
        )

    def take(self) -> Message | None:
        if not self.messages:
            return None
        message = self.messages.popleft()
        self.bytes -= len(message.data)
        return message

    async def wait(self, wait_s: float) -> None:
        """Until something has arrived, or the time is over."""
        self._arrived.clear()
        if self.messages:
            return
        try:
            async with asyncio.timeout(max(wait_s, 0.0)):
                await self._arrived.wait()
        except TimeoutError:
            return

    async def drain(self) -> None:
        """Close when all that the server has sent so far is here, to be taken."""
        if self._subscription is not None:
            subscription, self._subscription = self._subscription, None
            await subscription.drain()

    async def close(self) -> None:
        if self._subscription is not None:
            subscription, self._subscription = self._subscription, None
            await subscription.close()
