"""The Bus of one run over JetStream: see `broker.bus.Bus` for its guarantees."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import orjson

from broker import streams
from broker.answers import send_one, until_answered
from broker.bus import LogState, Stored
from broker.consumer import JetConsumer
from broker.cursor import JetCursor
from broker.errors import Conflict
from broker.messages import Event
from broker.objects import Objects
from broker.packing import LOG_SHARE, dead_copy
from broker.publisher import EXPECT_SUBJECT, Publisher
from broker.purge import purge
from broker.settings import NatsSettings
from broker.streams import lease_subject, leases_stream
from broker.topology import H_OBJECT, READERS, Log, Reader, stream_name
from broker.wire import Message, Unanswered, Wire, api, read_direct, read_message

MARGIN_BYTES = 4096
"""Kept free below the server's payload limit, for headers that the server and batches add."""
RESOLVE_WAIT_S = 60.0


class JetStreamBus:
    """The logs, objects and status channel of one run on a NATS server. See `broker.bus.Bus`."""

    def __init__(self, wire: Wire, run: str, settings: NatsSettings) -> None:
        self.run = run
        self._wire = wire
        self._objects = Objects(wire, run)
        limit = min(wire.max_payload - MARGIN_BYTES, settings.log_bytes // LOG_SHARE)
        # A replica may lag behind its leader, which alone may be asked then.
        self._ask = read_direct if settings.replicas == 1 else read_message
        self._publisher = Publisher(wire, run, self._objects, limit_bytes=limit)

    async def ensure_logs(
        self, settings: NatsSettings, readers: Sequence[Reader] = READERS
    ) -> None:
        """Make the run's streams and durable readers, or compare those that exist."""
        await streams.ensure_logs(self._wire, self.run, settings, readers)

    async def delete_run(self) -> int:
        """Delete the run's streams, objects included; of how many that was."""
        return await streams.delete_run(self._wire, self.run)

    async def publish(
        self, event: Event, *, expect_subject: int | None = None, expect_log: int | None = None
    ) -> int:
        return await self._publisher.publish(
            event, expect_subject=expect_subject, expect_log=expect_log
        )

    async def publish_batch(self, events: Sequence[Event], *, expect_log: int | None = None) -> int:
        return await self._publisher.publish_batch(events, expect_log=expect_log)

    async def last(self, log: Log, subject_filter: str) -> Stored | None:
        return await self._read(log, {"last_by_subj": subject_filter})

    async def get(self, log: Log, sequence: int) -> Stored | None:
        return await self._read(log, {"seq": sequence}) if sequence > 0 else None

    async def _read(self, log: Log, question: Mapping[str, object]) -> Stored | None:
        stored = await self._ask(self._wire, log, stream_name(self.run, log), question)
        return stored if stored is None else await self._resolve(stored)

    async def _resolve(self, stored: Stored) -> Stored:
        """With the body that the object store holds; without one when it is gone, which is Poison."""
        name = stored.headers.get(H_OBJECT)
        if name is None:
            return stored
        data = await self._objects.get(name, wait_s=RESOLVE_WAIT_S)
        return replace(stored, data=data or b"")

    async def state(self, log: Log) -> LogState:
        stream = stream_name(self.run, log)
        found = await api(self._wire, f"STREAM.INFO.{stream}")
        state = found["state"]
        pending = {}
        for reader in READERS:
            if reader.log is log:
                info = await api(self._wire, f"CONSUMER.INFO.{stream}.{reader.name}")
                pending[reader.name] = info["num_pending"] + info["num_ack_pending"]
        return LogState(
            first=state["first_seq"] if state["messages"] else state["last_seq"] + 1,
            last=state["last_seq"],
            messages=state["messages"],
            bytes=state["bytes"],
            limit_bytes=found["config"]["max_bytes"],
            pending=pending,
        )

    async def cursor(
        self, log: Log, after: int, subjects: Sequence[str] = (), *, headers_only: bool = False
    ) -> JetCursor:
        return JetCursor(
            self._wire,
            log,
            stream_name(self.run, log),
            after,
            subjects,
            headers_only=headers_only,
            resolve=self._resolve,
        )

    async def consumer(self, reader: Reader) -> JetConsumer:
        stream = stream_name(self.run, reader.log)
        return JetConsumer(self._wire, reader.log, stream, reader.name, self._resolve)

    async def dead_letter(self, stored: Stored, reason: str) -> None:
        copy = dead_copy(self.run, stored, reason, self._publisher.limit_bytes)
        try:
            await self._publisher.store(copy, expect_subject=0, expect_log=None)
        except Conflict:
            return  # an earlier delivery left its record

    async def purge(self, log: Log, up_to: int, *, keep_last_per_subject: bool = False) -> int:
        return await purge(
            self, self._wire, log, up_to, keep_last_per_subject=keep_last_per_subject
        )

    async def has_room(self) -> bool:
        try:
            answer = await send_one(self._wire, lease_subject(self.run, "room"), b"", {})
        except Unanswered:
            return True  # a broker that is away is not full
        return not answer.full

    async def put_object(self, name: str, chunks: bytes) -> None:
        await self._objects.put(name, chunks)

    async def get_object(self, name: str, *, wait_s: float) -> bytes | None:
        return await self._objects.get(name, wait_s=wait_s)

    async def delete_object(self, name: str) -> None:
        await self._objects.delete(name)

    async def list_objects(self, prefix: str) -> list[str]:
        return await self._objects.names(prefix)

    async def delete_unfinished_objects(self, age_s: float) -> int:
        return await self._objects.delete_unfinished(age_s)

    async def read_lease(self, role: str) -> tuple[bytes | None, int]:
        stream, question = leases_stream(self.run), {"last_by_subj": lease_subject(self.run, role)}
        found = await read_message(self._wire, Log.DEAD, stream, question)
        return (None, 0) if found is None else (found.data, found.sequence)

    async def write_lease(self, role: str, value: bytes, *, expect: int) -> int:
        subject, expected = lease_subject(self.run, role), {EXPECT_SUBJECT: str(expect)}
        answer = await until_answered(
            self._wire,
            leases_stream(self.run),
            "LEASES",
            lambda: send_one(self._wire, subject, value, expected),
        )
        if answer.stored:
            return answer.sequence
        found, revision = await self.read_lease(role)
        if found != value:
            raise Conflict(subject, expect)
        return revision

    async def answer_status(self, status: Callable[[], Mapping[str, object]]) -> None:
        async def answer(message: Message) -> None:
            await self._wire.send(message.reply, orjson.dumps(dict(status()), default=str))

        await self._wire.subscribe(f"sluice.{self.run}.status", answer)
        await api(self._wire, "INFO")  # answered after the subscription is in force

    async def ask_status(self, wait_s: float) -> list[Mapping[str, object]]:
        found: list[Mapping[str, object]] = []

        async def gather(message: Message) -> None:
            if message.data:  # an empty answer says that nobody listens
                found.append(orjson.loads(message.data))

        inbox = self._wire.new_inbox()
        subscription = await self._wire.subscribe(inbox, gather)
        await self._wire.send(f"sluice.{self.run}.status", b"", reply=inbox)
        await asyncio.sleep(wait_s)
        await subscription.close()
        return found

    async def close(self) -> None:
        """Send what is buffered, acknowledgements above all, and disconnect."""
        await self._wire.close()
