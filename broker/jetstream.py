"""The connection to NATS, and the only importer of nats. `connect` gives the bus of a run.

The connection mends itself for ever: nats-py reconnects, and should it give up (it closes itself on
errors that the server reports) a new client takes its place with the same subscriptions.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from urllib.parse import urlsplit

import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.subscription import Subscription as ClientSubscription

from broker import streams
from broker.errors import BadConfiguration, Unreachable
from broker.jetbus import JetStreamBus
from broker.settings import NatsSettings
from broker.telemetry import Health
from broker.wire import Message, Unanswered

REOPEN_PAUSE_S = 1.0
DRAIN_WAIT_S = 1.0

log = structlog.get_logger()


class _Subscription:
    """One subscription through all clients that the connection has had."""

    def __init__(
        self, link: "Connection", subject: str, on_message: Callable[[Message], Awaitable[None]]
    ) -> None:
        self._link = link
        self._subject = subject
        self._on_message = on_message
        self._current: ClientSubscription | None = None

    async def open(self, client: Client) -> None:
        # Readers bound what they ask for; nothing may be dropped here for being slow.
        self._current = await client.subscribe(
            self._subject, cb=self._on_message, pending_msgs_limit=0, pending_bytes_limit=0
        )

    async def close(self) -> None:
        self._link.subscriptions.discard(self)
        current, self._current = self._current, None
        if current is not None:
            try:
                await current.unsubscribe()
            except nats.errors.Error:
                return  # the connection went first, and the subscription with it

    async def drain(self) -> None:
        """Close once all that the server has sent so far is handed over, after DRAIN_WAIT_S at most."""
        current = self._current
        if current is not None:
            # What it sent to a connection that is gone is gone too.
            with suppress(nats.errors.Error, TimeoutError, OSError):
                async with asyncio.timeout(DRAIN_WAIT_S):
                    await current.drain()
        await self.close()


class Connection:
    """A `Wire` over nats-py."""

    def __init__(self, settings: NatsSettings, health: Health | None) -> None:
        self._settings = settings
        self._health = health
        self._client = Client()
        self._closing = False
        self._last_error: Exception | None = None
        self._refused = asyncio.Event()
        self._refusal: Exception | None = None
        self._reopening: asyncio.Task[None] | None = None
        self.subscriptions: set[_Subscription] = set()
        self._inbox = ""
        self._asked = 0
        self._answers: dict[str, asyncio.Future[Message]] = {}

    @property
    def max_payload(self) -> int:
        return self._client.max_payload

    async def open(self) -> None:
        """Connected within `connect_wait_s`, or Unreachable."""
        shown = shown_url(self._settings)
        connecting = asyncio.create_task(self._connect(self._client))
        refused = asyncio.create_task(self._refused.wait())
        try:
            await asyncio.wait(
                {connecting, refused},
                timeout=self._settings.connect_wait_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            refused.cancel()
            if not connecting.done() or connecting.exception() is not None:
                self._closing = True
                connecting.cancel()
                await self._client.close()
        if self._closing and self._refusal is not None:
            raise Unreachable(f"nats.url {shown}: refused ({self._refusal})")
        if self._closing:
            raise Unreachable(
                f"nats.url {shown}: not connected within {self._settings.connect_wait_s:g} s"
                f" ({self._last_error or 'no answer'})"
            )
        self._inbox = self.new_inbox()
        await self.subscribe(f"{self._inbox}.*", self._on_answer)

    async def _connect(self, client: Client) -> None:
        try:
            await client.connect(
                self._settings.url or "",
                user=self._settings.user,
                password=self._settings.password,
                name="sluice",
                error_cb=self._on_error,
                closed_cb=self._on_closed,
                disconnected_cb=self._on_disconnected,
                max_reconnect_attempts=-1,
                reconnect_time_wait=1,
                ping_interval=10,
                connect_timeout=5,
                # No buffering: what is sent while disconnected fails at once, and we repeat it.
                pending_size=0,
                skip_subject_validation=True,
            )
        except (nats.errors.Error, OSError, ValueError) as error:
            self._last_error = error
            raise

    async def _on_error(self, error: Exception) -> None:
        self._last_error = error
        if "authorization" in f"{type(error).__name__} {error}".lower():
            # Kept apart: the server hangs up next, and that is reported as an error of its own.
            self._refusal = error
            self._refused.set()

    async def _on_closed(self) -> None:
        if not self._closing:
            self._reopening = asyncio.create_task(self._reopen())

    async def _reopen(self) -> None:
        """A new client after the old one closed itself."""
        log.warning("nats_closed", error=str(self._last_error))
        await asyncio.sleep(REOPEN_PAUSE_S)
        self._client = Client()
        await self._connect(self._client)
        for subscription in list(self.subscriptions):
            await subscription.open(self._client)

    async def request(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None, timeout_s: float
    ) -> Message:
        """Ends at once when the connection breaks: the answer would never come."""
        self._asked += 1
        token = str(self._asked)
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._answers[token] = answer
        try:
            async with asyncio.timeout(timeout_s):
                await self.send(subject, data, headers, f"{self._inbox}.{token}")
                message = await answer
        except TimeoutError:
            raise Unanswered(f"no answer within {timeout_s:g} s") from None
        finally:
            del self._answers[token]
        if (message.headers or {}).get("Status") == "503":
            raise Unanswered("nobody listens")
        return message

    async def _on_answer(self, message: Message) -> None:
        answer = self._answers.get(message.subject.rpartition(".")[2])
        if answer is not None and not answer.done():
            answer.set_result(message)

    async def _on_disconnected(self) -> None:
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(Unanswered("disconnected"))

    async def send(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None = None, reply: str = ""
    ) -> None:
        try:
            await self._client.publish(
                subject, data, reply=reply, headers=dict(headers) if headers else None
            )
        except (nats.errors.Error, OSError) as error:
            raise Unanswered(f"{type(error).__name__} {error}".strip()) from error

    async def subscribe(
        self, subject: str, on_message: Callable[[Message], Awaitable[None]]
    ) -> _Subscription:
        subscription = _Subscription(self, subject, on_message)
        self.subscriptions.add(subscription)
        if not self._client.is_closed:  # else it is opened with the next client
            await subscription.open(self._client)
        return subscription

    def new_inbox(self) -> str:
        return self._client.new_inbox()

    def waiting_for(self, what: str) -> AbstractContextManager[None]:
        return self._health.waiting_for(what, None) if self._health else nullcontext()

    async def close(self) -> None:
        """Send what is buffered, acknowledgements above all, and disconnect."""
        self._closing = True
        if self._reopening is not None:
            self._reopening.cancel()
        try:
            if self._client.is_connected:
                await self._client.flush(timeout=2)
            await self._client.close()
        except (nats.errors.Error, OSError) as error:
            log.warning("nats_not_flushed", error=str(error))


def shown_url(settings: NatsSettings) -> str:
    """The URL without user and password; BadConfiguration when it is none."""
    expected = "expected nats://HOST:PORT (or tls, ws, wss)"
    try:
        parts = urlsplit(settings.url or "")
        port = parts.port or 4222
    except ValueError as error:
        raise BadConfiguration(f"nats.url: {error}; {expected}") from error
    if parts.scheme not in ("nats", "tls", "ws", "wss") or not parts.hostname:
        raise BadConfiguration(f"nats.url with scheme {parts.scheme!r}: {expected}")
    return f"{parts.scheme}://{parts.hostname}:{port}"


async def connect(
    settings: NatsSettings, run: str, *, health: Health | None = None
) -> JetStreamBus:
    """Connected, or Unreachable after `settings.connect_wait_s`. Waits show in `health`."""
    connection = Connection(settings, health)
    await connection.open()
    return JetStreamBus(connection, run, settings)


async def list_runs(settings: NatsSettings) -> list[str]:
    """Ids of the runs on a server."""
    connection = Connection(settings, None)
    await connection.open()
    try:
        return await streams.list_runs(connection)
    finally:
        await connection.close()
