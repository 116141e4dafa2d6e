"""msgpack envelope of every event: kind, schema version, body.

Bad bytes raise Poison with a reason, never anything else.
"""

from collections.abc import Mapping

import msgpack
from pydantic import ValidationError

from broker.errors import Poison
from broker.messages import EVENTS, Event

MAX_BYTES = 512 * 1024 * 1024
"""Nothing larger is unpacked, wherever it came from."""


def encode(event: Event) -> bytes:
    """Bytes of the envelope {"kind", "schema", "body"}."""
    body = event.model_dump(mode="python")
    try:
        packed = msgpack.packb(
            {"kind": event.KIND, "schema": event.SCHEMA, "body": body}, use_bin_type=True
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise Poison(f"{event.KIND}: cannot be packed: {error}") from error
    assert packed is not None  # packb returns None only for a Packer that does not autoreset
    return packed


def decode(data: bytes, *, unread: Mapping[str, object] | None = None) -> Event:
    """The event in `data`; Poison when the bytes, the kind, the version or a field is not what we speak.

    unread: fields of the body that the caller has no use for, each with the value to take instead. They
    are stepped over, whatever is in them; unpacking and checking answers is most of the work.
    """
    if len(data) > MAX_BYTES:
        raise Poison(f"message of {len(data)} bytes; the limit is {MAX_BYTES}")
    try:
        # Tuples, since the messages are immutable; strict string keys by default.
        envelope = (
            _without(unread, data) if unread else msgpack.unpackb(data, use_list=False, raw=False)
        )
    except Exception as error:  # msgpack raises a dozen kinds; all mean bad bytes
        raise Poison(f"not a msgpack envelope: {type(error).__name__}: {error}") from error
    if not isinstance(envelope, dict) or set(envelope) != {"kind", "schema", "body"}:
        raise Poison("envelope: expected exactly the keys kind, schema, body")
    kind = EVENTS.get(envelope["kind"]) if isinstance(envelope["kind"], str) else None
    if kind is None:
        raise Poison(f"kind {envelope['kind']!r}: expected one of {', '.join(sorted(EVENTS))}")
    if envelope["schema"] != kind.SCHEMA:
        raise Poison(
            f"{kind.KIND}: schema {envelope['schema']!r}, this process speaks {kind.SCHEMA}"
        )
    try:
        return kind.model_validate(envelope["body"])
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Poison(
            f"{kind.KIND}.{where}: {first['msg']} ({error.error_count()} errors)"
        ) from error


def _without(unread: Mapping[str, object], data: bytes) -> dict[str, object]:
    """The envelope, with `unread` in place of what the body says under these names."""
    unpacker = msgpack.Unpacker(
        use_list=False, raw=False, max_buffer_size=max(1, len(data)), read_size=max(1, len(data))
    )
    unpacker.feed(data)
    envelope: dict[str, object] = {}
    for _ in range(unpacker.read_map_header()):
        name = _name(unpacker)
        envelope[name] = _body(unpacker, unread) if name == "body" else unpacker.unpack()
    if unpacker.tell() != len(data):
        raise ValueError(f"{len(data) - unpacker.tell()} bytes behind it")
    return envelope


def _body(unpacker: msgpack.Unpacker, unread: Mapping[str, object]) -> dict[str, object]:
    body: dict[str, object] = {}
    for _ in range(unpacker.read_map_header()):
        name = _name(unpacker)
        if name in unread:
            unpacker.skip()
            body[name] = unread[name]
        else:
            body[name] = unpacker.unpack()
    return body


def _name(unpacker: msgpack.Unpacker) -> str:
    """Of a field. Other keys would have to be hashed first, whatever that costs."""
    name = unpacker.unpack()
    if not isinstance(name, str):
        raise ValueError(f"a key that is {type(name).__name__}, expected text")
    return name
