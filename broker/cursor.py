"""Reading a log in order over JetStream, never skipping.

A cursor trusts nothing but sequences: a gap in what its consumer sends, a vanished consumer, or
silence while the log holds a next message all make it start a new consumer after its position.
"""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from broker.bus import Stored
from broker.errors import LogLost, TooLong
from broker.inbox import Inbox, Resolve, as_stored, is_delivery
from broker.topology import H_OBJECT, Log
from broker.wire import ApiError, Message, Unanswered, Wire, delivery_position

SILENCE_S = 1.0
"""After this long without a message a cursor asks the log whether there is one."""
PULL_MESSAGES = 2000
PULL_BYTES = 24 * 1024 * 1024
"""Of one pull; another is sent when fewer bytes than this are buffered: at most twice in memory."""
PULL_EXPIRES_S = 30.0
READ_BYTES = 64 * 1024 * 1024
"""One read returns early above this size, which only bodies from the object store reach."""
CONSUMER_INACTIVE_S = 120
RESTART_PAUSE_S = 0.2
ANSWER_TIMEOUT_S = 2.0


class JetCursor:
    """Reads a stream in order through an ephemeral pull consumer without acknowledgements."""

    def __init__(
        self,
        wire: Wire,
        log: Log,
        stream: str,
        after: int,
        subjects: Sequence[str],
        *,
        headers_only: bool,
        resolve: Resolve,
    ) -> None:
        self.position = after
        self._wire = wire
        self._log = log
        self._stream = stream
        self._subjects = list(subjects)
        self._headers_only = headers_only
        self._resolve = resolve
        self._inbox = Inbox()
        self._consumer: str | None = None
        self._received = after
        """Sequence of the last message that arrived in the inbox and was in order."""
        self._consumer_sequence = 0
        self._pulled = 0
        """Messages that the pull under way may still bring."""
        self._ready: deque[Stored] = deque()
        self._ready_bytes = 0
        self._heard = time.monotonic()
        self._restart_at = 0.0

    async def read(self, limit: int, wait_s: float) -> list[Stored]:
        deadline = time.monotonic() + wait_s
        while True:
            await self._refill()
            if self._ready:
                return await self._hand_over(limit)
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return []
            await self._inbox.wait(min(left_s, 0.1 if self._consumer is None else SILENCE_S))

    @property
    def buffered_bytes(self) -> int:
        """What was sent ahead of the reader and lies in memory."""
        return self._ready_bytes + self._inbox.bytes

    async def close(self) -> None:
        await self.forget_consumer()
        await self._inbox.close()

    async def _hand_over(self, limit: int) -> list[Stored]:
        found: list[Stored] = []
        size = 0
        while self._ready and len(found) < limit and size < READ_BYTES:
            stored = self._ready[0]
            if H_OBJECT in stored.headers and not self._headers_only:
                try:
                    stored = await self._resolve(stored)
                except TooLong:
                    return found  # the next read tries again
            self._ready_bytes -= len(self._ready.popleft().data)
            self.position = stored.sequence
            found.append(stored)
            size += len(stored.data)
        return found

    async def _refill(self) -> None:
        """Move what arrived into order, pull more, and mend the consumer when it fails."""
        try:
            if self._consumer is None:
                await self._start_consumer()
            while self._consumer is not None and (message := self._inbox.take()) is not None:
                self._accept(message)
            if self._consumer is None:
                return
            if self._pulled <= 0 and self._ready_bytes < PULL_BYTES:
                await self._pull()
            if not self._ready and time.monotonic() - self._heard > SILENCE_S:
                await self._check_silence()
        except (Unanswered, ApiError):
            self._give_up_consumer()

    def _accept(self, message: Message) -> None:
        self._heard = time.monotonic()
        found = message.headers or {}
        if not is_delivery(message):
            # 408: expired; 409 with a batch or size limit: the pull is used up. Others: it is gone.
            over = found.get("Status") == "408" or "Batch" in found.get("Description", "")
            if over or "MaxBytes" in found.get("Description", ""):
                self._pulled = 0
            else:
                self._give_up_consumer()
            return
        _, sequence, consumer_sequence, _ = delivery_position(message.reply)
        if consumer_sequence != self._consumer_sequence + 1:
            self._give_up_consumer()
            return
        self._consumer_sequence = consumer_sequence
        self._received = sequence
        self._pulled -= 1
        stored = as_stored(self._log, message)
        self._ready.append(stored)
        self._ready_bytes += len(stored.data)

    async def _start_consumer(self) -> None:
        if time.monotonic() < self._restart_at:
            return
        await self._inbox.open(self._wire)
        await self._refuse_shorter_log()
        config: dict[str, object] = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self._received + 1,
            "ack_policy": "none",
            "replay_policy": "instant",
            "max_deliver": -1,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": CONSUMER_INACTIVE_S * 1_000_000_000,
            "headers_only": self._headers_only,
        }
        if self._subjects:
            config["filter_subjects"] = self._subjects
        question = {"stream_name": self._stream, "config": config}
        reply = await self._ask(f"CONSUMER.CREATE.{self._stream}", question)
        self._consumer = reply["name"]
        self._consumer_sequence = 0
        self._pulled = 0
        self._heard = time.monotonic()

    async def _ask(self, name: str, question: Mapping[str, object] | None) -> dict[str, Any]:
        """One attempt: a read must return in time, the next one tries again."""
        data = b"" if question is None else orjson.dumps(question)
        reply = await self._wire.request(f"$JS.API.{name}", data, None, ANSWER_TIMEOUT_S)
        found = orjson.loads(reply.data)
        if "error" in found:
            raise ApiError(name, found["error"])
        return found

    async def _pull(self) -> None:
        self._pulled = PULL_MESSAGES
        question = {
            "batch": PULL_MESSAGES,
            # A pull that cannot hold one message would bring none.
            "max_bytes": max(PULL_BYTES, 2 * self._wire.max_payload),
            "expires": round(PULL_EXPIRES_S * 1_000_000_000),
        }
        await self._inbox.pull(self._wire, f"{self._stream}.{self._consumer}", question)

    async def _check_silence(self) -> None:
        """Nothing came for a while. If the log holds a next message, this consumer is blind."""
        for subject in self._subjects or [">"]:
            question = {"seq": self._received + 1, "next_by_subj": subject}
            found = await self._ask_message(question)
            if found and not self._inbox.messages:
                self._give_up_consumer()
                return
        await self._refuse_shorter_log()
        self._heard = time.monotonic()

    async def _refuse_shorter_log(self) -> None:
        """What comes next would be other messages under numbers that we have read already."""
        found = await self._ask(f"STREAM.INFO.{self._stream}", None)
        last = found["state"]["last_seq"]
        if last < self._received:
            raise LogLost(
                f"{self._stream} ends at {last}, and was read to {self._received}: the broker has lost "
                "messages; ops/adr/0008-loss-of-a-host.md says who can go on from what is left, and how"
            )

    async def _ask_message(self, question: Mapping[str, object]) -> bool:
        try:
            await self._ask(f"STREAM.MSG.GET.{self._stream}", question)
        except ApiError as error:
            if error.code == 404:
                return False
            raise
        return True

    def _give_up_consumer(self) -> None:
        """Start a new one after the last message in order; the server forgets the old one."""
        self._consumer = None
        self._restart_at = time.monotonic() + RESTART_PAUSE_S

    async def forget_consumer(self) -> None:
        """Delete the consumer on the server; reading on makes another."""
        if self._consumer is None:
            return
        try:
            await self._ask(f"CONSUMER.DELETE.{self._stream}.{self._consumer}", None)
        except (Unanswered, ApiError):
            return  # it is ephemeral: the server forgets it anyway
