"""The object store of a run over JetStream, in the format of NATS object buckets.

An object is visible once its meta message is stored, after all its chunks; replacing is
compare-and-set on that message, so that two writers of one name never mix their chunks.
Chunks are read one question at a time: a deleted one is answered at once, nothing hangs.
"""

import asyncio
import base64
import hashlib
import uuid
from datetime import UTC, datetime
from typing import Any

import orjson
import structlog

from broker.answers import ACK_TIMEOUT_S, send_one, until_answered
from broker.bus import Stored
from broker.errors import TooLong
from broker.streams import bucket, object_stream
from broker.telemetry import now_us
from broker.topology import Log
from broker.wire import Unanswered, Wire, api, read_message

log = structlog.get_logger()

CHUNK_BYTES = 512 * 1024
RETRIED_S = 0.05


class Objects:
    """Objects of one run, by name; names may contain any character."""

    def __init__(self, wire: Wire, run: str) -> None:
        self._wire = wire
        self._bucket = bucket(run)
        self._stream = object_stream(run)

    def _meta_subject(self, name: str) -> str:
        return f"$O.{self._bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"

    def _chunk_subject(self, nuid: str) -> str:
        return f"$O.{self._bucket}.C.{nuid}"

    async def _meta(self, name: str) -> tuple[int, dict[str, Any] | None]:
        """(sequence, meta) of the newest meta message; (0, None) when there is none."""
        found = await self._newest(self._meta_subject(name))
        return (0, None) if found is None else (found.sequence, orjson.loads(found.data))

    async def exists(self, name: str) -> bool:
        _, meta = await self._meta(name)
        return meta is not None and not meta.get("deleted")

    async def put(self, name: str, data: bytes) -> None:
        """Store or replace."""
        nuid = uuid.uuid4().hex
        size = max(1024, min(CHUNK_BYTES, self._wire.max_payload // 2))
        starts = range(0, len(data), size)
        for number, start in enumerate(starts):
            chunk = memoryview(data)[start : start + size]
            await self._publish(
                self._chunk_subject(nuid), bytes(chunk), {"Nats-Msg-Id": f"{nuid}-{number}"}
            )
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()
        meta = {
            "name": name,
            "bucket": self._bucket,
            "nuid": nuid,
            "size": len(data),
            "chunks": len(starts),
            "digest": f"SHA-256={digest}",
            "mtime": datetime.now(UTC).isoformat(),
            "deleted": False,
            "options": {"max_chunk_size": size},
        }
        replaced = await self._write_meta(name, meta)
        if replaced is not None:
            await self._purge(self._chunk_subject(replaced))

    async def _write_meta(self, name: str, meta: dict[str, Any]) -> str | None:
        """Compare-and-set until it is ours; the nuid of what it replaced."""
        while True:
            sequence, before = await self._meta(name)
            if before is not None and before["nuid"] == meta["nuid"] and not before["deleted"]:
                return None
            stored = await self._publish(
                self._meta_subject(name),
                orjson.dumps(meta),
                {
                    "Nats-Rollup": "sub",
                    "Nats-Expected-Last-Subject-Sequence": str(sequence),
                },
            )
            if stored:
                return before["nuid"] if before is not None else None

    async def get(self, name: str, *, wait_s: float) -> bytes | None:
        """The object, its digest checked; None when there is none, TooLong without an answer in time.

        One that is damaged for all of `wait_s` counts as none: no wait will mend it.
        """
        damaged = False
        try:
            async with asyncio.timeout(wait_s):
                while True:
                    try:
                        _, meta = await self._meta(name)
                        if meta is None or meta.get("deleted"):
                            return None
                        data = await self._read_chunks(meta)
                        if data is not None:
                            return data
                        damaged = True
                    except Unanswered:
                        damaged = False
                    await asyncio.sleep(RETRIED_S)
        except TimeoutError:
            if not damaged:
                raise TooLong(f"object {name}: no answer within {wait_s:g} s") from None
        log.error("object_damaged", object=name)
        return None

    async def _read_chunks(self, meta: dict[str, Any]) -> bytes | None:
        """None when a chunk is not there or the digest differs: it was replaced or deleted meanwhile."""
        subject, sequence, chunks = self._chunk_subject(meta["nuid"]), 0, []
        for _ in range(meta["chunks"]):
            reply = await self._wire.request(
                f"$JS.API.DIRECT.GET.{self._stream}",
                orjson.dumps({"seq": sequence + 1, "next_by_subj": subject}),
                None,
                ACK_TIMEOUT_S,
            )
            found = reply.headers or {}
            if "Nats-Sequence" not in found:
                return None
            sequence = int(found["Nats-Sequence"])
            chunks.append(reply.data)
        data = b"".join(chunks)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()
        return data if meta["digest"] == f"SHA-256={digest}" else None

    async def delete(self, name: str) -> None:
        """Remove it with its chunks; no error when there is none.

        Nothing is published, so that it works when the store is full. The meta message goes last:
        a deletion that is cut short can be repeated.
        """
        sequence, meta = await self._meta(name)
        if meta is not None:
            await self._purge(self._chunk_subject(meta["nuid"]))
            # Up to this meta message only: one that replaced it meanwhile stays.
            await self._purge(self._meta_subject(name), before=sequence + 1)

    async def names(self, prefix: str) -> list[str]:
        names = []
        for subject in await self._subjects(f"$O.{self._bucket}.M.>"):
            name = base64.urlsafe_b64decode(subject.rpartition(".")[2]).decode()
            if name.startswith(prefix) and await self.exists(name):
                names.append(name)
        return sorted(names)

    async def delete_unfinished(self, age_s: float) -> int:
        """Delete chunks that no meta message names, the newest of them at least `age_s` old."""
        # Chunks first: those of an object that is stored meanwhile are then named.
        chunks = await self._subjects(f"$O.{self._bucket}.C.>")
        metas = [
            await self._newest(subject)
            for subject in (await self._subjects(f"$O.{self._bucket}.M.>") if chunks else ())
        ]
        named = {self._chunk_subject(orjson.loads(m.data)["nuid"]) for m in metas if m is not None}
        deleted = 0
        for subject in chunks:
            newest = await self._newest(subject) if subject not in named else None
            if newest is not None and now_us() - newest.stored_at_us >= age_s * 1e6:
                await self._purge(subject)
                deleted += 1
        return deleted

    async def _newest(self, subject: str) -> Stored | None:
        question = {"last_by_subj": subject}
        return await read_message(self._wire, Log.DEAD, self._stream, question)

    async def _subjects(self, subjects_filter: str) -> list[str]:
        found: list[str] = []
        while True:
            page = await api(
                self._wire,
                f"STREAM.INFO.{self._stream}",
                {"subjects_filter": subjects_filter, "offset": len(found)},
            )
            subjects = page["state"].get("subjects") or {}
            found += subjects
            if not subjects or len(found) >= page.get("total", 0):
                return found

    async def _purge(self, subject: str, *, before: int | None = None) -> None:
        question: dict[str, object] = {"filter": subject}
        if before is not None:
            question["seq"] = before
        await api(self._wire, f"STREAM.PURGE.{self._stream}", question)

    async def _publish(self, subject: str, data: bytes, headers: dict[str, str]) -> bool:
        """Until stored (True) or refused by its expectation (False)."""
        answer = await until_answered(
            self._wire,
            self._stream,
            "OBJECTS",
            lambda: send_one(self._wire, subject, data, headers),
        )
        return answer.stored
