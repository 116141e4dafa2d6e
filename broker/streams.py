"""The streams and durable readers of a run: made once by whoever comes first, compared by all.

An existing one whose settings differ is refused, not bent: a log with the wrong discard policy
loses messages.
"""

from collections.abc import Mapping, Sequence

from broker.errors import BadConfiguration
from broker.settings import NatsSettings
from broker.topology import Log, Reader, log_subjects, stream_name
from broker.wire import NOT_FOUND_STREAM, ApiError, Wire, api, api_or_none

DUPLICATE_WINDOW_S = 900
"""A publication without expectation that is repeated within this time is stored once."""

LEASES_BYTES = 256 * 1024

_EXISTS = {10058, 10148, 10013}
"""Stream name in use, consumer exists, consumer name in use: made by somebody else, compare."""

_NO_ROOM = {10047, 10028, 10002, 10023}


def bucket(run: str) -> str:
    return f"{run}_OBJECTS"


def object_stream(run: str) -> str:
    """Named as NATS tools expect it, so that `nats object ls` works."""
    return f"OBJ_{bucket(run)}"


def leases_stream(run: str) -> str:
    return f"{run}_LEASES"


def lease_subject(run: str, role: str) -> str:
    return f"sluice.{run}.lease.{role}"


def wanted_log(run: str, log: Log, settings: NatsSettings) -> dict[str, object]:
    """Settings of a log's stream."""
    return {
        "name": stream_name(run, log),
        "subjects": list(log_subjects(run, log)),
        "storage": "file",
        "retention": "limits",
        "discard": "old" if log is Log.DEAD else "new",
        "max_bytes": settings.log_bytes,
        "max_msgs": -1,
        "max_age": 0,
        "max_msgs_per_subject": -1,
        "num_replicas": settings.replicas,
        "allow_direct": True,
        "allow_atomic": log is not Log.DEAD,
        "duplicate_window": DUPLICATE_WINDOW_S * 1_000_000_000,
    }


def wanted_objects(run: str, settings: NatsSettings) -> dict[str, object]:
    """Settings of the object bucket's stream."""
    name = bucket(run)
    return {
        "name": object_stream(run),
        "subjects": [f"$O.{name}.C.>", f"$O.{name}.M.>"],
        "storage": "file",
        "retention": "limits",
        "discard": "new",
        "max_bytes": -1,
        "num_replicas": settings.replicas,
        "allow_direct": True,
        "allow_rollup_hdrs": True,
        "duplicate_window": DUPLICATE_WINDOW_S * 1_000_000_000,
    }


def wanted_leases(run: str, settings: NatsSettings) -> dict[str, object]:
    """Settings of the stream that holds the newest word about each lease and nothing older."""
    return {
        "name": leases_stream(run),
        "subjects": [lease_subject(run, "*")],
        "storage": "file",
        "retention": "limits",
        "discard": "old",
        "max_bytes": LEASES_BYTES,
        "max_msgs_per_subject": 1,
        "num_replicas": settings.replicas,
        "allow_direct": False,
    }


def wanted_reader(run: str, reader: Reader) -> dict[str, object]:
    """Settings of a durable consumer: every one that has a default is stated."""
    return {
        "name": reader.name,
        "durable_name": reader.name,
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "replay_policy": "instant",
        "ack_wait": round(reader.ack_wait_s * 1_000_000_000),
        "max_deliver": -1,
        "max_ack_pending": reader.max_ack_pending,
        "max_waiting": 4096,
        "filter_subjects": list(reader.subjects(run)),
    }


def check_same(what: str, wanted: Mapping[str, object], found: Mapping[str, object]) -> None:
    """BadConfiguration for the first setting that is not the wanted one."""
    for field, value in wanted.items():
        absent: object = type(value)() if isinstance(value, bool | int) else None
        actual = found.get(field, absent)
        if isinstance(value, list) and isinstance(actual, list):
            value, actual = sorted(value), sorted(actual)
        if actual != value:
            hint = " (nats-server 2.12 or newer is needed)" if field == "allow_atomic" else ""
            raise BadConfiguration(f"{what}: {field} is {actual!r}; expected {value!r}{hint}")


async def _make_stream(wire: Wire, wanted: dict[str, object]) -> None:
    name = wanted["name"]
    try:
        await api(wire, f"STREAM.CREATE.{name}", wanted)
    except ApiError as error:
        if error.err_code in _NO_ROOM:
            raise BadConfiguration(
                f"stream {name}: the server has no room for max_bytes = {wanted['max_bytes']}: {error}; "
                "lower nats.log_bytes, delete old runs, or raise the server's max_file_store"
            ) from error
        if error.err_code not in _EXISTS:
            raise
    found = await api(wire, f"STREAM.INFO.{name}")
    check_same(f"stream {name}", wanted, found["config"])


async def _make_reader(wire: Wire, run: str, reader: Reader) -> None:
    stream, wanted = stream_name(run, reader.log), wanted_reader(run, reader)
    question = {"stream_name": stream, "config": wanted, "action": "create"}
    try:
        await api(wire, f"CONSUMER.CREATE.{stream}.{reader.name}", question)
    except ApiError as error:
        if error.err_code not in _EXISTS:
            raise
    found = await api(wire, f"CONSUMER.INFO.{stream}.{reader.name}")
    check_same(f"consumer {stream}.{reader.name}", wanted, found["config"])


async def ensure_logs(
    wire: Wire, run: str, settings: NatsSettings, readers: Sequence[Reader]
) -> None:
    """Make what is missing, compare what is there. Many processes may do so at once."""
    for log in Log:
        await _make_stream(wire, wanted_log(run, log, settings))
    await _make_stream(wire, wanted_objects(run, settings))
    await _make_stream(wire, wanted_leases(run, settings))
    for reader in readers:
        await _make_reader(wire, run, reader)


async def delete_run(wire: Wire, run: str) -> int:
    """Delete everything the broker holds of a run; of how many streams that was."""
    logs = (stream_name(run, log) for log in Log)
    names = (*logs, object_stream(run), leases_stream(run))
    answers = [
        await api_or_none(wire, f"STREAM.DELETE.{name}", None, NOT_FOUND_STREAM) for name in names
    ]
    return sum(answer is not None for answer in answers)


async def list_runs(wire: Wire) -> list[str]:
    """Ids of the runs whose ledger is on this server, sorted."""
    suffix = f"_{Log.LEDGER}"
    names: list[str] = []
    while True:
        page = await api(wire, "STREAM.NAMES", {"offset": len(names)})
        names += page.get("streams") or []
        if not page.get("streams") or len(names) >= page["total"]:
            return sorted(n.removesuffix(suffix) for n in names if n.endswith(suffix))
