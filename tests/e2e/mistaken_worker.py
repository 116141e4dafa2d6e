"""A worker that is mistaken about what it sends, and about what time it is.

mistaken_worker.py CLOCK_S MISTAKE,... ROLE CONFIG, for example `+30 twice,nan rollout config.toml`.
Its wall clock is off by CLOCK_S seconds. Every second train group of its own suffers the next
mistake of the list; the rest is the worker as it is. Each mistake is logged with its group.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import structlog

from broker.arrays import logprob_array
from broker.jetbus import JetStreamBus
from broker.messages import Event, GroupGenerated, GroupVerified, VersionSpan
from broker.packing import Packed, pack
from broker.settings import NatsSettings
from broker.telemetry import Health
from ops import settings, worker
from ops.paths import RunPaths, default_runs
from ops.processes import die_with

HELD_BACK_S = 0.3
UNKNOWN_VERSION = 1_000_000
NOT_A_NUMBER = float("nan")

log = structlog.get_logger()


def shift_clock(seconds: float) -> None:
    """Only the wall clock: what measures durations stays right, as where a clock is off."""
    right = time.time_ns
    time.time_ns = lambda: right() + round(seconds * 1e9)


# --- mistakes: event, its packed form -> what is sent instead -------------------------------------


def cut(_event: Event, packed: Packed) -> Packed:
    """The second half is missing."""
    return replace(packed, data=packed.data[: len(packed.data) // 2])


def lengths(_event: Event, packed: Packed) -> Packed:
    """A log-probability is missing; only a program that does not use our types could send it."""
    envelope = msgpack.unpackb(packed.data)
    array = envelope["body"]["generations"][0]["logprobs"]
    array |= {"shape": [array["shape"][0] - 1], "data": array["data"][:-4]}
    return replace(packed, data=msgpack.packb(envelope))


def nan(event: Event, packed: Packed) -> Packed:
    """No log-probability is a number."""
    return _with_generations(
        event,
        packed,
        lambda g: {"logprobs": logprob_array([NOT_A_NUMBER] * len(g.token_ids))},
    )


def version(event: Event, packed: Packed) -> Packed:
    """Sampled from model weights that nobody has published yet."""
    return _with_generations(
        event,
        packed,
        lambda g: {"spans": (VersionSpan(version=UNKNOWN_VERSION, first=0, end=len(g.token_ids)),)},
    )


def foreign(event: Event, packed: Packed) -> Packed:
    """The answers to another group's request."""
    assert isinstance(event, GroupGenerated)
    assert event.request is not None
    other = event.group.model_copy(update={"group_id": f"9{event.group.group_id[1:]}"})
    request = event.request.model_copy(update={"group": other})
    wrong = pack(packed.subject.split(".")[1], event.model_copy(update={"request": request}))
    return replace(packed, data=wrong.data)


def unasked(event: Event) -> Event:
    """The answers to a request that nobody made."""
    assert isinstance(event, GroupGenerated)
    assert event.request is not None
    seq = 900_000 + event.group.request_seq
    key = event.group.model_copy(update={"group_id": f"{seq:08d}-0-0", "request_seq": seq})
    request = event.request.model_copy(update={"group": key})
    return event.model_copy(update={"group": key, "request": request})


def _with_generations(
    event: Event, packed: Packed, changes: Callable[[Any], dict[str, object]]
) -> Packed:
    assert isinstance(event, GroupGenerated)
    changed = tuple(g.model_copy(update=changes(g)) for g in event.generations)
    run = packed.subject.split(".")[1]
    return pack(run, event.model_copy(update={"generations": changed}))


CONTENT = {one.__name__: one for one in (cut, lengths, nan, version, foreign)}
"""Mistakes in what is sent; `twice` and `late` are mistakes in how."""


class MistakenBus:
    """A bus that sends every second group of a stage's output wrongly, one mistake after the other."""

    def __init__(self, bus: JetStreamBus, mistakes: tuple[str, ...]) -> None:
        self._bus = bus
        self._mistakes = mistakes
        self._sent = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    async def publish(self, event: Event, **expected: Any) -> int:
        if not isinstance(event, GroupGenerated | GroupVerified) or event.group.purpose != "train":
            return await self._bus.publish(event, **expected)
        self._sent += 1
        if self._sent % 2 or event.status == "failed":
            return await self._bus.publish(event, **expected)
        mistake = self._mistakes[self._sent // 2 % len(self._mistakes)]
        log.info("mistake", mistake=mistake, group_id=event.group.group_id)
        if mistake == "twice":
            await self._bus.publish(event, **expected)
        elif mistake == "again":
            await self._bus.publish(event)  # as if nobody had told it to expect an empty subject
            return await self._bus.publish(event)
        elif mistake == "unasked":
            await self._bus.publish(unasked(event))
        elif mistake == "late":
            await asyncio.sleep(HELD_BACK_S)  # others overtake it
        else:
            packed = CONTENT[mistake](event, pack(self._bus.run, event))
            return await self._bus._publisher.store(packed, expect_log=None, **expected)
        return await self._bus.publish(event, **expected)


def main(clock_s: float, mistakes: tuple[str, ...], role: str, config: Path) -> int:
    die_with(int(os.environ["SLUICE_PARENT"]))
    shift_clock(clock_s)

    async def connect(nats: NatsSettings, run: str, health: Health) -> Any:
        return MistakenBus(await worker.connect_to_nats(nats, run, health), mistakes)

    configuration = settings.load(config)
    paths = RunPaths(default_runs() / configuration.run.id)
    return worker.main(configuration, (role,), paths, resume=False, connect=connect)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    sys.exit(
        main(float(arguments[0]), tuple(arguments[1].split(",")), arguments[2], Path(arguments[3]))
    )
